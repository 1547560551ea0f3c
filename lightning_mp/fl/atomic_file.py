"""Text files that are either whole or not there, on a file system that hosts may share."""

import os
import uuid
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that nobody ever sees half of it.

    The temporary file stands beside its target, under a name that no other process or host takes.

    Args:
        path: Target; its folder is made as needed. A link is followed.
        text: The content, stored as UTF-8.

    Raises:
        OSError: The file could not be written; what was at ``path`` is unchanged then.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)

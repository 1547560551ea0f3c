"""Checkpoints that are either whole or not there.

Lightning writes a checkpoint to the system's temporary folder and moves it; where that folder is on
another disk, the move is a copy, and a crash in the middle leaves half a file in place of the last
good one. Here the temporary file is made beside its target, flushed to the disk and renamed.
"""

import os
import uuid
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from typing_extensions import override

from lightning_mp.lightning_api import TorchCheckpointIO

__all__ = ["AtomicCheckpointIO", "save_atomically"]


def save_atomically(checkpoint: Any, path: Path) -> None:
    """Save an object with ``torch.save`` so that ``path`` is never seen half written.

    Args:
        checkpoint: What to save.
        path: Target on a local disk; folders are made as needed.

    Raises:
        OSError: The file could not be written; what was at ``path`` is unchanged then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written beside their target and renamed.

    The precision strings and plugins of this package bring it along unless the Trainer was given a
    checkpoint IO already. Remote targets are left to Lightning.

    Example:
        >>> import lightning as L
        >>> trainer = L.Trainer(plugins=[AtomicCheckpointIO()], logger=False)
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        file_system, local_path = url_to_fs(str(path))
        if isinstance(file_system, LocalFileSystem) and storage_options is None:
            save_atomically(checkpoint, Path(local_path))
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

"""``lightning-mp init``: put a config and a module to start from into a folder."""

import os
import shlex
from importlib.resources import files
from pathlib import Path

__all__ = ["STARTER_FILES", "copy_starter"]

STARTER_FILES = ("starter.yaml", "starter.py")


def copy_starter(directory: Path, *, force: bool = False) -> str:
    """Copy the starter files into a folder, all of them or none.

    Args:
        directory: Target; made if it does not exist.
        force: Whether files that exist are overwritten.

    Returns:
        What was written and the command to run next.

    Raises:
        FileExistsError: If a file exists and ``force`` is not set. Nothing is written then.
        IsADirectoryError: If a folder has the name of a file. Nothing is written then.
        NotADirectoryError: If ``directory`` is a file.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(
            f"directory = {str(directory)!r} is a file; allowed: a folder, or a name that is free; "
            "choose another one"
        )
    # lexists: a dangling link is in the way as well.
    existing = [name for name in STARTER_FILES if os.path.lexists(directory / name)]
    if existing and not force:
        raise FileExistsError(
            f"directory = {str(directory)!r} already has {', '.join(existing)}; allowed: a folder "
            "without them; nothing was written, add --force to overwrite"
        )
    folders = [name for name in existing if (directory / name).is_dir()]
    if folders:
        raise IsADirectoryError(
            f"directory = {str(directory)!r} has a folder named {', '.join(folders)}; allowed: a "
            "folder without it; nothing was written, move it away or choose another directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    templates = files("lightning_mp.cli.templates")
    for name in STARTER_FILES:
        (directory / name).write_bytes((templates / name).read_bytes())
    return f"wrote {' and '.join(STARTER_FILES)}\nnext: {_next_command(directory)}"


def _next_command(directory: Path) -> str:
    command = f"lightning-mp fit --config {STARTER_FILES[0]}"
    if directory.resolve() == Path.cwd():
        return command
    return f"cd {shlex.quote(str(directory))} && {command}"

"""The folder that fl keeps in the user's home, which several hosts may share."""

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["fl_folder"]


def fl_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Locate ``~/.torch_fl``; nothing is made.

    Args:
        environ: Environment variables.

    Returns:
        The folder, or None for a user without a home.

    Example:
        >>> fl_folder({"HOME": "/home/ada"})
        PosixPath('/home/ada/.torch_fl')
    """
    home = environ.get("HOME")
    if home:
        return Path(home) / ".torch_fl"
    try:
        return Path.home() / ".torch_fl"
    except RuntimeError:
        return None

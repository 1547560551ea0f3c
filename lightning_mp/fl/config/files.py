"""Find, load and save the file of the configuration."""

import os
from collections.abc import Mapping
from pathlib import Path

from lightning_mp.fl.atomic_file import write_atomically
from lightning_mp.fl.config.fl_config import FlConfig
from lightning_mp.fl.config.reader import read_config
from lightning_mp.fl.home import fl_folder

__all__ = ["CONFIG_VARIABLE", "find_config", "load_config", "save_config"]

CONFIG_VARIABLE = "TORCH_FL_CONFIG"


def find_config(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Find the file that ``load_config`` reads.

    Args:
        environ: Environment variables.

    Returns:
        What ``TORCH_FL_CONFIG`` names, or ``~/.torch_fl/config.yaml`` if that is there, or None.

    Raises:
        FileNotFoundError: ``TORCH_FL_CONFIG`` names a file that is not there.
    """
    asked = environ.get(CONFIG_VARIABLE, "").strip()
    if asked:
        path = Path(asked).expanduser()
        if not path.exists():
            raise FileNotFoundError(
                f"{CONFIG_VARIABLE} = {asked!r}, where no file is; allowed: a YAML file; correct "
                "the name, or unset the variable"
            )
        return path
    folder = fl_folder(environ)
    path = None if folder is None else folder / "config.yaml"
    return path if path is not None and path.exists() else None


def load_config(path: Path | None = None) -> FlConfig:
    """Load the configuration.

    Args:
        path: File to read; None for the one that ``find_config`` finds.

    Returns:
        The configuration; the defaults if there is no file.

    Raises:
        ValueError: The file holds something that is not allowed; the message has file and line.
        OSError: The file cannot be read.

    Example:
        >>> load_config()  # doctest: +SKIP
        FlConfig(devices=(), ...)
    """
    found = find_config() if path is None else path
    if found is None:
        return FlConfig()
    try:
        text = found.read_text(encoding="utf-8")
    except OSError as error:
        raise type(error)(
            f"config file = {str(found)!r} cannot be read ({error.strerror}); allowed: a YAML file "
            "that this user may read; change its rights, or name another one"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"config file = {str(found)!r} is not UTF-8 ({error.reason}); allowed: YAML text; save "
            "it as UTF-8"
        ) from error
    return read_config(text, found)


def save_config(path: Path, config: FlConfig | None = None) -> None:
    """Save the configuration that is in force, with its defaults, beside the results of a run.

    Args:
        path: File to write; it is seen whole or not at all. Its folder is made as needed.
        config: What to save; None for what ``load_config`` loads.

    Raises:
        OSError: The file could not be written; what was there is unchanged then.
    """
    write_atomically(path, (load_config() if config is None else config).to_yaml())

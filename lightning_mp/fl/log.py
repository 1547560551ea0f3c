"""The logger of fl, with the level and the file of the configuration."""

import logging
import warnings
from pathlib import Path

from lightning_mp.fl.config import LoggingConfig

__all__ = ["LOGGER_NAME", "apply_logging", "log_line"]

LOGGER_NAME = "lightning_mp.fl"

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"


def apply_logging(config: LoggingConfig) -> None:
    """Give the logger of fl its level and its file; a former file is closed.

    Lines reach the handlers of the program as well. A file that cannot be opened costs a warning.

    Args:
        config: The section ``logging``.
    """
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(config.level.upper())
    for handler in [x for x in logger.handlers if isinstance(x, _OwnHandler)]:
        logger.removeHandler(handler)
        handler.close()
    if config.path is None:
        return
    try:
        Path(config.path).parent.mkdir(parents=True, exist_ok=True)
        handler = _OwnHandler(config.path, encoding="utf-8")
    except OSError as error:
        warnings.warn(
            f"logging.path = {config.path!r} cannot be written ({error.strerror}); expected: a "
            "file that this user may append to; fl logs without it",
            stacklevel=2,
        )
        return
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)


def log_line(line: str) -> None:
    """Log one step of discovery at level info."""
    logging.getLogger(LOGGER_NAME).info(line)


class _OwnHandler(logging.FileHandler):
    """Tell the handler that the configuration made from those of the program."""

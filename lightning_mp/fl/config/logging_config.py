"""The section ``logging``: how much fl says, and where."""

from dataclasses import dataclass

from lightning_mp.fl.config.checks import check_choice
from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["LEVELS", "LoggingConfig"]

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Set the level and the file of the logger ``lightning_mp.fl``.

    Args:
        level: Least severe level that is logged: debug, info, warning or error.
        path: File that lines are appended to; None leaves them to the logging of the program.

    Raises:
        SettingError: A value is not allowed.

    Example:
        >>> LoggingConfig(level="debug")
        LoggingConfig(level='debug', path=None)
    """

    level: str = "warning"
    path: str | None = None

    def __post_init__(self) -> None:
        check_choice("level", self.level, LEVELS)
        if self.path is not None and (not isinstance(self.path, str) or not self.path):
            raise SettingError(
                f"path = {self.path!r}; allowed: the name of a file, or null; write it in quotes",
                "path",
            )

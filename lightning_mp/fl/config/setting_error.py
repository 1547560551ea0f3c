"""The error of a setting with a wrong value."""

__all__ = ["SettingError"]


class SettingError(ValueError):
    """Refuse a setting and say which one it is, so that a reader of files can add the line.

    Args:
        message: What is wrong, what is allowed and what to do.
        setting: Path of the setting in its record, such as ``"count"`` or ``"devices[1].type"``.
    """

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(message)
        self.setting = setting

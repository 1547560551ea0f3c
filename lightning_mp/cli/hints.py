"""What jsonargparse leaves out of its errors: the arguments that a class does take."""

import difflib
import importlib
import inspect
import re
from typing import Any

__all__ = ["with_allowed_arguments"]

_UNKNOWN_ARGUMENT = re.compile(
    r"class_path '(?P<path>[\w.]+)':\s+(?:Option|Key) '(?P<name>\w+)' is not (?:accepted|expected)"
)


def with_allowed_arguments(message: str) -> str:
    """Add the allowed arguments to an error about an unknown one.

    Args:
        message: Error text of jsonargparse.

    Returns:
        The text, with one line more per class that was given an unknown argument.

    Example:
        >>> where = "class_path 'lightning_mp.callbacks.OverflowLogger'"
        >>> with_allowed_arguments(f"{where}: Option 'names' is not accepted").splitlines()[-1]
        "OverflowLogger takes max_names; did you mean 'max_names'?"
    """
    hints = {}
    for found in _UNKNOWN_ARGUMENT.finditer(message):
        allowed = _allowed_arguments(found["path"])
        if allowed:
            class_name = found["path"].rpartition(".")[2]
            close = difflib.get_close_matches(found["name"], allowed, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            hints[f"{class_name} takes {', '.join(allowed)}{guess}"] = None
    return "\n".join([message, *hints])


def _allowed_arguments(class_path: str) -> list[str]:
    module_name, _, class_name = class_path.rpartition(".")
    try:
        cls: Any = getattr(importlib.import_module(module_name), class_name)
        parameters = inspect.signature(cls).parameters.values()
    except (ImportError, AttributeError, ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]

"""Checks of single settings; each raises a SettingError with value, allowed set and remedy."""

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch

from lightning_mp.fl.config.setting_error import SettingError

__all__ = [
    "check_boolean",
    "check_choice",
    "check_fraction",
    "check_integer",
    "check_list",
    "check_number",
    "check_operators",
    "closest",
]

# namespace::name, with or without an overload.
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")


def check_boolean(setting: str, value: Any) -> None:
    """Require ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise SettingError(
            f"{setting} = {value!r}; allowed: true or false; write one of them without quotes",
            setting,
        )


def check_integer(setting: str, value: Any, minimum: int) -> None:
    """Require an integer of at least ``minimum``; ``True`` is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise SettingError(
            f"{setting} = {value!r}; allowed: an integer of at least {minimum}; write such a "
            "number without quotes or unit",
            setting,
        )


def check_fraction(setting: str, value: Any) -> None:
    """Require a number above 0 and up to 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise SettingError(
            f"{setting} = {value!r}; allowed: a number above 0 and up to 1; 1 is the whole", setting
        )


def check_number(setting: str, value: Any, minimum: float, maximum: float) -> None:
    """Require a number in a closed range."""
    if not _is_number(value) or not minimum <= value <= maximum:
        raise SettingError(
            f"{setting} = {value!r}; allowed: a number from {minimum} to {maximum}; write such a "
            "number without quotes",
            setting,
        )


def check_choice(setting: str, value: Any, choices: Collection[str]) -> None:
    """Require one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise SettingError(
            f"{setting} = {value!r}; allowed: one of {', '.join(choices)}"
            f"{closest(value, choices)}; write one of them",
            setting,
        )


def check_list(setting: str, value: Any) -> None:
    """Require a list without repetitions."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SettingError(
            f"{setting} = {value!r}; allowed: a list; write it in brackets, as in [a, b]", setting
        )
    for place, item in enumerate(value):
        if item in value[:place]:
            raise SettingError(
                f"{setting}[{place}] = {item!r}, which is in the list before; allowed: each once; "
                "remove one of them",
                f"{setting}[{place}]",
            )


def check_operators(setting: str, value: Any) -> None:
    """Require a list of operator names; those of torch itself must exist.

    Operators of other libraries may be registered later, so only their spelling is checked.
    """
    check_list(setting, value)
    names = _known_operators() if value else frozenset()
    for place, name in enumerate(value):
        item = f"{setting}[{place}]"
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
            raise SettingError(
                f"{item} = {name!r}; allowed: an operator as namespace::name or "
                "namespace::name.overload; write it like aten::add or aten::add.Tensor",
                item,
            )
        if name.startswith("aten::") and name not in names:
            raise SettingError(
                f"{item} = {name!r}; allowed: an operator that torch {torch.__version__} has"
                f"{closest(name, names)}; correct the name",
                item,
            )


def closest(value: Any, choices: Collection[str]) -> str:
    """Guess what was meant.

    Returns:
        ``" (did you mean …?)"``, or nothing if no choice is close.

    Example:
        >>> closest("levels", ["level", "path"])
        " (did you mean 'level'?)"
    """
    found = difflib.get_close_matches(str(value), choices, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _known_operators() -> frozenset[str]:
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(names) | {name.partition(".")[0] for name in names}

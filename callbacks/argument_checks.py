"""Checks of arguments that several callbacks share."""

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["require_choice", "require_count", "require_number"]


def require_count(name: str, value: Any, *, minimum: int = 1) -> None:
    """Refuse what is not a whole number of at least a minimum.

    Args:
        name: Name of the argument.
        value: What was given.
        minimum: Least value allowed.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(
            f"{name} = {value!r}; allowed is an int of at least {minimum}; pass one, or leave the "
            "argument out if it has a default"
        )


def require_number(name: str, value: Any, *, above: float, at_most: float = math.inf) -> None:
    """Refuse what is not a number in a range.

    Args:
        name: Name of the argument.
        value: What was given.
        above: The number must be larger.
        at_most: The number must not be larger.

    Raises:
        ValueError: It is something else, NaN included.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not above < value <= at_most:
        raise ValueError(
            f"{name} = {value!r}; allowed is a number above {above:g} and up to {at_most:g}; pass "
            "one, or leave the argument out for its default"
        )


def require_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse what is not one of some words.

    Args:
        name: Name of the argument.
        value: What was given.
        allowed: The words.

    Raises:
        ValueError: It is something else.
    """
    if value not in allowed:
        raise ValueError(
            f"{name} = {value!r}; allowed are {', '.join(map(repr, allowed))}; choose one of them"
        )

"""The environment variable that keeps ``import lightning_mp`` from changing other packages."""

import os

__all__ = ["NO_PATCH_VARIABLE", "is_opted_out"]

NO_PATCH_VARIABLE = "LIGHTNING_MP_NO_PATCH"

_FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})


def is_opted_out() -> bool:
    """Say whether the environment variable ``LIGHTNING_MP_NO_PATCH`` forbids patches at import.

    Returns:
        ``False`` when it is unset, empty, ``0``, ``false``, ``no`` or ``off``; ``True`` otherwise.
    """
    return os.environ.get(NO_PATCH_VARIABLE, "").strip().lower() not in _FALSE_WORDS

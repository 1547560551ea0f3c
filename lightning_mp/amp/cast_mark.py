"""The mark of a region in which casts are off.

The mark is the dtype of a disabled CPU autocast, a slot that nothing else uses: threads of the
backward pass inherit it, and activation checkpointing stores it with a block and restores it while
it computes the block again, in both of its forms.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["casts_are_off", "casts_off", "casts_on"]

_OFF = torch.float32
_ON = torch.bfloat16  # torch's own default


def casts_are_off() -> bool:
    """Tell whether the caller is in a region in which casts are off."""
    return torch.get_autocast_dtype("cpu") is _OFF


@contextmanager
def casts_off() -> Iterator[None]:
    """Switch the casts of function modes off. CPU autocast is off too meanwhile."""
    with torch.autocast("cpu", dtype=_OFF, enabled=False), _OffMode():
        yield


@contextmanager
def casts_on() -> Iterator[None]:
    """Switch the casts of function modes on again inside such a region."""
    with torch.autocast("cpu", dtype=_ON, enabled=False):
        yield


class _OffMode(TorchFunctionMode):
    """Does nothing: compiled code is guarded by the modes that are on, not by that dtype."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        return func(*args, **(kwargs or {}))

"""Casts of weights to half, kept so that several uses of one weight share one."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["WeightCastCache"]


class WeightCastCache:
    """Keep the half casts of FP32 parameters for the length of one outermost forward.

    A cast is made anew if it is stale (the parameter was written to in place) or cannot take part
    in autograd where it has to (it was made without gradients, or in inference mode).

    Args:
        dtype: The half dtype.

    Example:
        >>> weight = nn.Parameter(torch.ones(3))
        >>> cache = WeightCastCache(torch.bfloat16)
        >>> cache.cast(weight) is cache.cast(weight)
        True
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def cast(self, weight: nn.Parameter) -> Tensor:
        """Return the parameter in half.

        Args:
            weight: A parameter in another floating dtype.
        """
        entry = self._entries.get(id(weight))
        if entry is not None and entry.fits(weight):
            return entry.cast
        cast = weight.to(self._dtype)
        if not weight.is_inference():
            self._entries[id(weight)] = _Entry(weight, weight._version, cast)
        return cast

    def forget(self, weight: Tensor) -> None:
        """Drop the cast of one tensor, which may be written to unseen.

        Args:
            weight: Any tensor.
        """
        self._entries.pop(id(weight), None)

    def clear(self) -> None:
        """Drop all casts."""
        self._entries.clear()


class _Entry(NamedTuple):
    weight: Tensor  # held, so that its id is not given to another tensor
    version: int
    cast: Tensor

    def fits(self, weight: Tensor) -> bool:
        if self.weight is not weight or self.version != weight._version:
            return False
        if torch.is_grad_enabled():
            return self.cast.requires_grad == weight.requires_grad and not self.cast.is_inference()
        return torch.is_inference_mode_enabled() or not self.cast.is_inference()

"""A module that casts what goes through it."""

from typing import Any

import torch
from torch import nn

from lightning_mp.amp.tree import cast_floating

__all__ = ["tofp16"]


class tofp16(nn.Module):
    """Cast floating tensors to float16; everything else passes unchanged.

    Example:
        >>> tofp16()(torch.ones(3)).dtype
        torch.float16
    """

    def forward(self, input: Any) -> Any:
        """Cast one input.

        Args:
            input: A tensor, or nested data that holds some.

        Returns:
            The same with its floating tensors in float16.
        """
        return cast_floating(input, torch.float16)

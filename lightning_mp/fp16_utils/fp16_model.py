"""A float16 network that takes FP32 inputs."""

from typing import Any

import torch
from torch import nn

from lightning_mp.amp.tree import cast_floating
from lightning_mp.fp16_utils.conversion import convert_network

__all__ = ["FP16Model"]


class FP16Model(nn.Module):
    """Wrap a network that is cast to float16, all but batch norms with weights.

    Unlike in Apex, integer inputs stay integers, and keyword arguments are taken too.

    Args:
        network: Any module; cast in place.

    Example:
        >>> FP16Model(nn.Linear(7, 3))(torch.randn(5, 7)).dtype
        torch.float16
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, torch.float16)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the network on inputs cast to float16.

        Args:
            *inputs: What the network takes; floating tensors in nested data are found.
            **kwargs: The same by name.

        Returns:
            What the network returns, in the dtype that it computes it in.
        """
        inputs, kwargs = cast_floating((inputs, kwargs), torch.float16)
        return self.network(*inputs, **kwargs)

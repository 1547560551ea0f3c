"""FP32 gradients in place of half ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.kernels.reference import copy_to_float32

__all__ = ["raise_gradients", "widened"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)


@torch.no_grad()
def raise_gradients(parameters: Sequence[Tensor], masters: MasterWeights) -> None:
    """Replace half gradients by FP32 copies in the memory layout of the masters.

    Args:
        parameters: Model parameters that have a gradient; sparse gradients are coalesced.
        masters: Masters of the model.
    """
    halves = []
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            # In this order: coalescing adds.
            parameter.grad = gradient.to(torch.float32).coalesce()
        elif gradient.dtype in _HALF_DTYPES:
            halves.append(parameter)
    targets = [masters.of(parameter).detach() for parameter in halves]
    likes = [target if target.dtype == torch.float32 else target.float() for target in targets]
    copies = copy_to_float32([parameter.grad for parameter in halves], likes)
    for parameter, copy in zip(halves, copies, strict=True):
        parameter.grad = copy


def widened(gradient: Tensor) -> Tensor:
    """Return a gradient in FP32 if it is half, and itself if not.

    Args:
        gradient: A dense or sparse gradient.
    """
    if gradient.dtype not in _HALF_DTYPES:
        return gradient
    return gradient.to(torch.float32)

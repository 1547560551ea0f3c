"""FP32 tensors in place of half ones, gradients above all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.kernels.reference import copy_to_float32

__all__ = ["raise_gradients", "widened"]


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
        elif gradient.dtype in HALF_DTYPES:
            halves.append(parameter)
    targets = [masters.of(parameter).detach() for parameter in halves]
    copies = copy_to_float32([parameter.grad for parameter in halves], targets)
    for parameter, copy in zip(halves, copies, strict=True):
        parameter.grad = copy


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in FP32 if it is half, and itself if not.

    Args:
        tensor: A dense or sparse tensor of any dtype.
    """
    return tensor.to(torch.float32) if tensor.dtype in HALF_DTYPES else tensor

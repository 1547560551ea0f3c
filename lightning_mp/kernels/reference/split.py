"""FP32 weights as bfloat16 halves and 16-bit remainders, in plain torch."""

import torch
from torch import Tensor

__all__ = ["join_master", "split_master"]

_CANONICAL_NAN = 0x7FC00000


def split_master(master: Tensor) -> tuple[Tensor, Tensor]:
    """Split FP32 numbers into bfloat16 halves and int16 remainders.

    Args:
        master: float32 tensor of any shape.

    Returns:
        The number rounded half away from zero, and its lower 16 bits. A NaN becomes the canonical
        one: the payload of another could carry into sign and exponent.
    """
    bits = torch.where(master.isnan(), _CANONICAL_NAN, master.view(torch.int32))
    upper = (bits >> 16) + ((bits >> 15) & 1)
    # Narrowing keeps the lower 16 bits.
    return upper.to(torch.int16).view(torch.bfloat16), bits.to(torch.int16)


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Join what :func:`split_master` split.

    Args:
        half: bfloat16 tensor.
        remainder: int16 tensor of the same shape.

    Returns:
        float32 tensor, exactly what was split.
    """
    lower = remainder.to(torch.int32) & 0xFFFF
    upper = half.view(torch.int16).to(torch.int32) - (lower >> 15)
    return ((upper << 16) | lower).view(torch.float32)

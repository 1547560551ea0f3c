"""FP32 weights as bfloat16 halves and 16-bit remainders, in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import check_lists

__all__ = ["join_", "join_master", "split_", "split_master"]

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


def split_(
    sources: Sequence[Tensor], halves: Sequence[Tensor], remainders: Sequence[Tensor]
) -> None:
    """Split FP32 tensors into existing halves and remainders.

    Args:
        sources: As in :func:`lightning_mp.kernels.split.split_`.
        halves: As there.
        remainders: As there.
    """
    lists = {
        "sources": (sources, (torch.float32,)),
        "halves": (halves, (torch.bfloat16,)),
        "remainders": (remainders, (torch.int16,)),
    }
    check_lists("split_", lists, written={"halves", "remainders"})
    for source, half, remainder in zip(sources, halves, remainders, strict=True):
        new_half, new_remainder = split_master(source)
        half.copy_(new_half)
        remainder.copy_(new_remainder)


def join_(
    halves: Sequence[Tensor], remainders: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Join halves and remainders into existing FP32 tensors.

    Args:
        halves: As in :func:`lightning_mp.kernels.split.join_`.
        remainders: As there.
        outputs: As there.
    """
    lists = {
        "halves": (halves, (torch.bfloat16,)),
        "remainders": (remainders, (torch.int16,)),
        "outputs": (outputs, (torch.float32,)),
    }
    check_lists("join_", lists, written={"outputs"})
    for half, remainder, output in zip(halves, remainders, outputs, strict=True):
        output.copy_(join_master(half, remainder))

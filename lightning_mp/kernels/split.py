"""FP32 masters as the bfloat16 weights of the model and the 16 bits that are left: 4 bytes each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.versions import bump_versions

__all__ = ["join_", "split_"]

load_kernels()


@torch.no_grad()
def split_(
    sources: Sequence[Tensor], halves: Sequence[Tensor], remainders: Sequence[Tensor]
) -> None:
    """Split FP32 tensors into bfloat16 halves and remainders, which :func:`join_` puts together.

    A half is its source rounded to nearest, ties away from zero, where ``torch.Tensor.bfloat16``
    rounds ties to even. Every number but NaN comes back exactly; a NaN as the canonical one.

    Args:
        sources: float32 tensors of any shapes and layouts, on one device.
        halves: bfloat16 tensors of the same shapes, written.
        remainders: int16 tensors of the same shapes, written.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> source, joined = torch.tensor([0.1, -3e38]), torch.zeros(2)
        >>> half, remainder = torch.zeros(2).bfloat16(), torch.zeros(2, dtype=torch.int16)
        >>> split_([source], [half], [remainder])
        >>> join_([half], [remainder], [joined])
        >>> torch.equal(joined, source)
        True
    """
    torch.ops.lightning_mp.split_(sources, halves, remainders)
    bump_versions(halves, remainders)


@torch.no_grad()
def join_(
    halves: Sequence[Tensor], remainders: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Join what :func:`split_` split.

    Args:
        halves: bfloat16 tensors of any shapes and layouts, on one device.
        remainders: int16 tensors of the same shapes.
        outputs: float32 tensors of the same shapes, written.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.
    """
    torch.ops.lightning_mp.join_(halves, remainders, outputs)
    bump_versions(outputs)

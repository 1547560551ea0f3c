"""L2 norms of many tensors in one pass over memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels

__all__ = ["l2_norm"]

load_kernels()


@torch.no_grad()
def l2_norm(tensors: Sequence[Tensor], *, per_tensor: bool = False) -> tuple[Tensor, Tensor]:
    """Compute the L2 norm of all tensors together, and of each.

    Squares are summed so that neither large nor small ones are lost; no graph is recorded.

    Args:
        tensors: float32, bfloat16 or float16, of any shapes and layouts, on one device.
        per_tensor: Whether to return the norm of each.

    Returns:
        The norm of all, a float32 scalar, 0 without tensors; and the norms of each, float32 of
        shape ``[len(tensors)]``, or of shape ``[0]`` without ``per_tensor``.

    Raises:
        RuntimeError: If a dtype is another, or there are several devices.

    Example:
        >>> total, each = l2_norm([torch.tensor([3.0]), torch.tensor([4.0])], per_tensor=True)
        >>> total.item(), each.tolist()
        (5.0, [3.0, 4.0])
    """
    return torch.ops.lightning_mp.l2_norm(tensors, per_tensor)

"""Cross-entropy of half logits with an FP32 loss and without FP32 copies of the logits."""

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels

__all__ = ["cross_entropy_backward", "cross_entropy_forward"]

load_kernels()


@torch.no_grad()
def cross_entropy_forward(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy of each row of half logits in FP32.

    No graph is recorded: :func:`cross_entropy_backward` makes the gradient.

    Args:
        logits: bfloat16 or float16, shape ``[N, C]``, of any layout; rows of neighbouring elements
            are read in place.
        target: int64, shape ``[N]``: a class of each row, or ``ignore_index``.
        weight: float32, shape ``[C]``: a factor of each class, or ``None``.
        ignore_index: Rows with this target have loss and gradient 0, whatever their logits are.
        label_smoothing: Share of the uniform distribution in the targets, 0 to 1.

    Returns:
        Losses, float32 of shape ``[N]``, as ``torch.nn.functional.cross_entropy`` gives them with
        ``reduction="none"``; and statistics for backward, float32 of shape ``[N, 3]``: largest
        logit, sum of ``exp(logit - largest)``, sum of the weights in the loss.

    Raises:
        RuntimeError: If an argument does not fit; on CPUs also if a target is out of bounds, which
            stops the kernel on a GPU, as in torch.

    Example:
        >>> logits = torch.zeros(2, 4).bfloat16()
        >>> losses, _ = cross_entropy_forward(logits, torch.tensor([3, -100]))
        >>> torch.allclose(losses, torch.tensor([4.0, 1.0]).log())
        True
    """
    return torch.ops.lightning_mp.cross_entropy_forward(
        logits, target, weight, ignore_index, label_smoothing
    )


@torch.no_grad()
def cross_entropy_backward(
    gradient: Tensor,
    logits: Tensor,
    target: Tensor,
    statistics: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the gradient of half logits; the incoming one is multiplied in FP32.

    Args:
        gradient: float32, shape ``[N]``: the gradient of each loss.
        logits: As in :func:`cross_entropy_forward`.
        target: As there.
        statistics: What :func:`cross_entropy_forward` returned for them.
        weight: As there.
        ignore_index: As there.
        label_smoothing: As there.

    Returns:
        The gradient of the logits, of their dtype and shape, contiguous; rounded once.

    Raises:
        RuntimeError: As in :func:`cross_entropy_forward`.
    """
    return torch.ops.lightning_mp.cross_entropy_backward(
        gradient, logits, target, statistics, weight, ignore_index, label_smoothing
    )

"""Pass 1 of a fused step: what has to be known of all gradients before the first weight moves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels

__all__ = ["gradient_stats_"]

load_kernels()


@torch.no_grad()
def gradient_stats_(
    gradients: Sequence[Tensor],
    *,
    norm: Tensor,
    factor: Tensor,
    found_inf: Tensor,
    inv_scale: Tensor | None = None,
    max_norm: float | None = None,
) -> None:
    """Compute norm and factor of gradients, and whether one of their elements is not finite.

    The gradients are read once and stay as they are. Nothing is copied to the host.

    Args:
        gradients: float32, bfloat16 or float16, of any shapes and layouts, on one device.
        norm: float32 with one element; takes the L2 norm of ``gradients * inv_scale``.
        factor: float32 with one element; takes ``inv_scale * min(1, max_norm / (norm + 1e-6))``,
            what unscales a gradient and clips it as ``torch.nn.utils.clip_grad_norm_`` does.
        found_inf: float32 with one element, or with one for each gradient; set to 1 if an element
            is infinite or NaN, and otherwise left alone.
        inv_scale: Reciprocal of the loss scale, float32 with one element; ``None`` for 1.
        max_norm: Largest norm allowed, above 0; ``None`` for no clipping.

    Raises:
        RuntimeError: If arguments do not fit together; nothing was written.

    Example:
        >>> norm, factor, found_inf = torch.zeros(3, 1).unbind()
        >>> gradients = [torch.tensor([3.0, 4.0]).bfloat16()]
        >>> gradient_stats_(gradients, norm=norm, factor=factor, found_inf=found_inf, max_norm=1.0)
        >>> norm.item(), round(factor.item(), 6), found_inf.item()
        (5.0, 0.2, 0.0)
    """
    torch.ops.lightning_mp.gradient_stats_(gradients, inv_scale, max_norm, norm, factor, found_inf)

"""Norm, factor and overflow of gradients of any dtype on any devices, in one pass if possible."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.reference import clip_coefficient, finite_flags, total_norm

__all__ = ["GradientStats", "measure_gradients"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class GradientStats(NamedTuple):
    """What pass 1 finds; float32 scalars on the device of the first gradient.

    Attributes:
        norm: L2 norm of the unscaled gradients.
        factor: What unscales and clips a gradient.
        found_inf: 1 if an element is infinite or NaN, else 0.
    """

    norm: Tensor
    factor: Tensor
    found_inf: Tensor


@torch.no_grad()
def measure_gradients(
    gradients: Sequence[Tensor], *, inv_scale: Tensor | None = None, max_norm: float | None = None
) -> GradientStats:
    """Measure gradients; nothing is copied to the host.

    Args:
        gradients: Dense tensors.
        inv_scale: Reciprocal of their loss scale; ``None`` for 1.
        max_norm: Largest norm of the unscaled gradients; ``None`` for no limit.
    """
    groups: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.device, []).append(gradient)
    device = gradients[0].device if gradients else torch.device("cpu")
    unscale = None if inv_scale is None else inv_scale.to(device, non_blocking=True)
    if len(groups) < 2:
        return _measure(gradients, device, unscale, max_norm)
    parts = [_measure(members, home, None, None) for home, members in groups.items()]
    norms = torch.stack([part.norm.to(device, non_blocking=True) for part in parts])
    flags = torch.stack([part.found_inf.to(device, non_blocking=True) for part in parts])
    return _combined(torch.linalg.vector_norm(norms), flags.amax(), unscale, max_norm)


def _measure(
    gradients: Sequence[Tensor],
    device: torch.device,
    inv_scale: Tensor | None,
    max_norm: float | None,
) -> GradientStats:
    if any(gradient.dtype not in _DTYPES for gradient in gradients):
        found_inf = finite_flags(gradients).logical_not().any().float()
        return _combined(total_norm(gradients), found_inf, inv_scale, max_norm)
    stats = GradientStats(*torch.zeros(3, device=device).unbind())
    gradient_stats_(
        gradients,
        norm=stats.norm,
        factor=stats.factor,
        found_inf=stats.found_inf,
        inv_scale=inv_scale,
        max_norm=max_norm,
    )
    return stats


def _combined(
    scaled_norm: Tensor, found_inf: Tensor, inv_scale: Tensor | None, max_norm: float | None
) -> GradientStats:
    factor = torch.ones_like(scaled_norm) if inv_scale is None else inv_scale
    norm = scaled_norm * factor
    if max_norm is not None:
        factor = factor * clip_coefficient(norm, max_norm)
    return GradientStats(norm, factor, found_inf)

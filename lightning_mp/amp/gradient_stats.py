"""Norm, factor and overflow of gradients of any dtype on any devices, in one pass if possible."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.reference import clip_coefficient, finite_flags, total_norm

__all__ = ["KERNEL_DTYPES", "GradientStats", "any_flag", "measure_gradients"]

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of gradients that the fused operations take."""


class GradientStats(NamedTuple):
    """What pass 1 finds; float32 on the device of the first gradient, scalars but for the last.

    Attributes:
        norm: L2 norm of the unscaled gradients.
        factor: What unscales and clips a gradient.
        found_inf: 1 if an element is infinite or NaN, else 0.
        flags: The same of each gradient, of shape ``[len(gradients)]``.
    """

    norm: Tensor
    factor: Tensor
    found_inf: Tensor
    flags: Tensor


def any_flag(flags: Tensor) -> Tensor:
    """Return a scalar that is 1 if one of some flags is, else 0.

    Args:
        flags: Float32 vector of zeros and ones.
    """
    return flags.amax() if flags.numel() else flags.new_zeros(())


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
    groups: dict[torch.device, list[int]] = {}
    for index, gradient in enumerate(gradients):
        groups.setdefault(gradient.device, []).append(index)
    device = gradients[0].device if gradients else torch.device("cpu")
    unscale = None if inv_scale is None else inv_scale.to(device, non_blocking=True)
    if len(groups) < 2:
        return _measure(gradients, device, unscale, max_norm)
    parts = [
        _measure([gradients[index] for index in members], home, None, None)
        for home, members in groups.items()
    ]
    norms = torch.stack([part.norm.to(device, non_blocking=True) for part in parts])
    flags = torch.zeros(len(gradients), device=device)
    for members, part in zip(groups.values(), parts, strict=True):
        flags[members] = part.flags.to(device, non_blocking=True)
    return _combined(torch.linalg.vector_norm(norms), flags, unscale, max_norm)


def _measure(
    gradients: Sequence[Tensor],
    device: torch.device,
    inv_scale: Tensor | None,
    max_norm: float | None,
) -> GradientStats:
    if any(gradient.dtype not in KERNEL_DTYPES for gradient in gradients):
        flags = finite_flags(gradients).logical_not().float()
        return _combined(total_norm(gradients), flags, inv_scale, max_norm)
    numbers = torch.zeros(2 + len(gradients), device=device)
    norm, factor, flags = numbers[0], numbers[1], numbers[2:]
    gradient_stats_(
        gradients,
        norm=norm,
        factor=factor,
        found_inf=flags,
        inv_scale=inv_scale,
        max_norm=max_norm,
    )
    return GradientStats(norm, factor, any_flag(flags), flags)


def _combined(
    scaled_norm: Tensor, flags: Tensor, inv_scale: Tensor | None, max_norm: float | None
) -> GradientStats:
    factor = torch.ones_like(scaled_norm) if inv_scale is None else inv_scale
    norm = scaled_norm * factor
    if max_norm is not None:
        factor = factor * clip_coefficient(norm, max_norm)
    return GradientStats(norm, factor, any_flag(flags), flags)

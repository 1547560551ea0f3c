"""``lightning_mp::gradient_stats_`` and ``l2_norm`` in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import (
    FLOATING,
    check_found_inf,
    check_lists,
    check_range,
    check_scalars,
    set_found_inf,
)
from lightning_mp.kernels.reference.passes import clip_coefficient

__all__ = ["gradient_stats_", "l2_norm"]

# Elements that are in double precision at a time.
_CHUNK = 2**22


def gradient_stats_(
    gradients: Sequence[Tensor],
    inv_scale: Tensor | None,
    max_norm: float | None,
    norm: Tensor,
    factor: Tensor,
    found_inf: Tensor,
) -> None:
    """Compute norm and factor of gradients, and whether one of their elements is not finite.

    Args:
        gradients: As in :func:`lightning_mp.kernels.gradient_stats.gradient_stats_`.
        inv_scale: As there.
        max_norm: As there.
        norm: As there.
        factor: As there.
        found_inf: As there.
    """
    name = "gradient_stats_"
    check_lists(name, {"gradients": (gradients, FLOATING)})
    scalars = {"norm": norm, "factor": factor, "inv_scale": inv_scale}
    check_scalars(name, gradients, {key: (item, torch.float32) for key, item in scalars.items()})
    check_found_inf(name, gradients, found_inf)
    check_range(name, "max_norm", max_norm, is_open=True)
    sums = [_sum_of_squares([gradient], norm.device) for gradient in gradients]
    total = torch.stack([torch.zeros_like(norm, dtype=torch.float64).reshape(()), *sums]).sum()
    unscale = torch.ones_like(total) if inv_scale is None else inv_scale.reshape(())
    value = (total.sqrt() * unscale).float()
    norm.fill_(value)
    unscale = unscale.float()
    factor.fill_(unscale if max_norm is None else unscale * clip_coefficient(value, max_norm))
    # In double precision the squares of finite float32 numbers cannot overflow.
    set_found_inf(found_inf, [item.isfinite() for item in sums])


def l2_norm(tensors: Sequence[Tensor], per_tensor: bool) -> tuple[Tensor, Tensor]:
    """Compute the L2 norm of all tensors together, and of each.

    Args:
        tensors: As in :func:`lightning_mp.kernels.l2_norm.l2_norm`.
        per_tensor: As there.

    Returns:
        The norm of all, a float32 scalar; and the norms of each, or none.
    """
    check_lists("l2_norm", {"tensors": (tensors, FLOATING)})
    device = tensors[0].device if tensors else torch.device("cpu")
    sums = [_sum_of_squares([tensor], device) for tensor in tensors]
    each = torch.stack(sums) if sums else torch.zeros(0, dtype=torch.float64)
    return each.sum().sqrt().float(), each.sqrt().float()[: None if per_tensor else 0].clone()


def _sum_of_squares(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    sums = [
        chunk.double().square().sum()
        for tensor in tensors
        for chunk in tensor.reshape(-1).split(_CHUNK)
    ]
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.float64, device=device)

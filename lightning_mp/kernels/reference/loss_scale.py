"""``lightning_mp::update_scale_`` in plain torch."""

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import check_scalars

__all__ = ["update_scale_"]


def update_scale_(
    scale: Tensor,
    growth_tracker: Tensor,
    hysteresis_tracker: Tensor,
    found_inf: Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
    min_scale: float,
    max_scale: float,
) -> None:
    """Move the loss scale after a step.

    Args:
        scale: As in :func:`lightning_mp.kernels.loss_scale.update_scale_`, like all that follow.
        growth_tracker: Clean steps in a row.
        hysteresis_tracker: Overflows left until the scale shrinks.
        found_inf: Whether the step overflowed.
        growth_factor: Factor of growth.
        backoff_factor: Factor of shrinking.
        growth_interval: Clean steps until the scale grows.
        hysteresis: Overflows in a row until it shrinks.
        min_scale: Floor.
        max_scale: Cap.
    """
    scalars = {
        "scale": (scale, torch.float32),
        "growth_tracker": (growth_tracker, torch.int32),
        "hysteresis_tracker": (hysteresis_tracker, torch.int32),
        "found_inf": (found_inf, torch.float32),
    }
    check_scalars("update_scale_", [], scalars)
    overflow = (found_inf != 0).reshape(())
    left = (hysteresis_tracker.reshape(()) - 1).clamp(min=0)
    good = (growth_tracker.reshape(()) + 1) * ~overflow
    grows = good >= growth_interval
    old = scale.reshape(())
    # All products are made: where() between Python numbers would take the default dtype.
    moved = torch.where(grows, old * growth_factor, old)
    moved = torch.where(overflow & (left == 0), old * backoff_factor, moved)
    scale.fill_(moved.clamp(min_scale, max_scale))
    growth_tracker.fill_(good * ~grows)
    hysteresis_tracker.fill_(torch.where(overflow, left, hysteresis))

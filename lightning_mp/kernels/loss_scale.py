"""The rule of a dynamic loss scale, on the device."""

import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels

__all__ = ["update_scale_"]

load_kernels()


@torch.no_grad()
def update_scale_(
    scale: Tensor,
    growth_tracker: Tensor,
    hysteresis_tracker: Tensor,
    found_inf: Tensor,
    *,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    hysteresis: int = 1,
    min_scale: float = 2.0**-10,
    max_scale: float = 2.0**24,
) -> None:
    """Move the loss scale after a step, as :class:`lightning_mp.amp.loss_scaler.LossScaler` does.

    Args:
        scale: float32 with one element, updated in place.
        growth_tracker: Clean steps in a row, int32 with one element, updated in place.
        hysteresis_tracker: Overflows left until the scale shrinks, int32 with one element, updated
            in place.
        found_inf: float32 with one element; not 0 if the step overflowed.
        growth_factor: Factor that it grows by after ``growth_interval`` clean steps in a row.
        backoff_factor: Factor that it shrinks by once ``hysteresis`` steps in a row overflowed,
            and at every further one.
        growth_interval: Number of steps, at least 1.
        hysteresis: Number of steps, at least 1.
        min_scale: Floor of the scale.
        max_scale: Cap of the scale.

    Raises:
        RuntimeError: If a tensor has another dtype or size, or there are several devices.

    Example:
        >>> scale, found_inf = torch.tensor(8.0), torch.ones(())
        >>> trackers = [torch.tensor(count, dtype=torch.int32) for count in (5, 1)]
        >>> update_scale_(scale, *trackers, found_inf)
        >>> scale.item(), [tracker.item() for tracker in trackers]
        (4.0, [0, 0])
    """
    torch.ops.lightning_mp.update_scale_(
        scale,
        growth_tracker,
        hysteresis_tracker,
        found_inf,
        growth_factor,
        backoff_factor,
        growth_interval,
        hysteresis,
        min_scale,
        max_scale,
    )

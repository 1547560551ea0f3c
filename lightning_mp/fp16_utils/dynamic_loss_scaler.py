"""The moving loss scale of hand-written loops."""

import torch

from lightning_mp import amp
from lightning_mp.fp16_utils.loss_scaler import LossScaler

__all__ = ["DynamicLossScaler"]

_CAP = 2.0**126  # Apex had none; above it the reciprocal is no normal float32 number


class DynamicLossScaler(LossScaler):
    """Multiply losses by a scale that starts high and moves with the overflows.

    An overflow divides the scale by ``scale_factor``, down to 1; ``scale_window`` good steps in a
    row multiply it. The first steps of a run overflow until a fitting scale is found.

    Args:
        init_scale: First scale, from 1 to 2**126.
        scale_factor: Factor of both moves, above 1.
        scale_window: Number of good steps before the scale grows, at least 1.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> scaler = DynamicLossScaler(init_scale=1024.0)
        >>> scaler.update_scale(overflow=True)
        >>> scaler.loss_scale
        512.0
    """

    def __init__(
        self, init_scale: float = 2.0**32, scale_factor: float = 2.0, scale_window: int = 1000
    ) -> None:
        if not scale_factor > 1.0:
            raise ValueError(
                f"scale_factor = {scale_factor!r}; allowed is a number above 1; 2.0 is the "
                "default, and LossScaler(scale) has a scale that does not move"
            )
        self.scale_factor = scale_factor
        self.scale_window = scale_window
        self._engine = amp.LossScaler(
            "dynamic",
            init_scale=float(init_scale),
            growth_factor=scale_factor,
            backoff_factor=1.0 / scale_factor,
            growth_interval=scale_window,
            min_loss_scale=1.0,
            max_loss_scale=_CAP,
        )

    @property
    def loss_scale(self) -> float:
        """The scale; waits for the device that the last loss was on.

        Raises:
            ValueError: If it is set to a number that is not from 1 to 2**126.
        """
        return self._engine.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        if not 1.0 <= value <= _CAP:
            raise ValueError(
                f"loss_scale = {value!r}; allowed is 1 to 2**126; a dynamic scale never falls "
                "below 1"
            )
        self._engine.load_state_dict({**self._engine.state_dict(), "loss_scale": float(value)})

    def update_scale(self, overflow: bool) -> None:
        """Move the scale after a step.

        Args:
            overflow: Whether the step overflowed.
        """
        self._engine.record(torch.tensor(float(overflow)))
        self._engine.update()

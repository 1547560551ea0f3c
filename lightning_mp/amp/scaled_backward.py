"""The window around backwards under one loss scaler.

When it opens, the gradients that exist already are put aside; when it closes, the new ones are
checked, unscaled in FP32 and added to the old. So losses with different scales can meet in one
gradient, and a scale that is no power of two rounds nothing twice.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_mp.amp.gradient_check import GradientCheck, dense_values
from lightning_mp.amp.gradient_clip import scale_gradients_
from lightning_mp.amp.gradient_raise import raise_gradients
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_weights import MasterWeights

__all__ = ["ScaledBackward"]


class ScaledBackward:
    """Keep earlier gradients apart from those of the backwards inside.

    Args:
        parameters: Model parameters whose gradients the backwards make.
        masters: Masters of the model.
        scaler: Scaler of the loss; its present scale counts until the window closes.
        names: Qualified name of each model parameter.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        masters: MasterWeights,
        scaler: LossScaler,
        names: Mapping[Tensor, str],
    ) -> None:
        self._scaler = scaler
        self._scale = scaler.scale
        self._parameters = tuple(parameters)
        self._masters = masters
        self._names = names
        self._inv_scale = scaler.inv_scale
        self._earlier = {item: item.grad for item in self._parameters if item.grad is not None}
        for parameter in self._parameters:
            parameter.grad = None

    def has_scale_of(self, scaler: LossScaler) -> bool:
        """Tell whether a backward under a scaler, as it is now, may share this window.

        Args:
            scaler: A loss scaler.
        """
        # The scaler replaces its scale whenever it moves.
        return scaler is self._scaler and scaler.scale is self._scale

    @torch.no_grad()
    def close(self) -> GradientCheck:
        """Unscale the new gradients and add the earlier ones.

        Afterwards each parameter's gradient is unscaled and FP32 (that of a float64 parameter
        stays float64).

        Returns:
            What the check found in the new gradients, still scaled.
        """
        fresh = [item for item in self._parameters if item.grad is not None]
        check = GradientCheck(fresh, self._names)
        raise_gradients(fresh, self._masters)
        if fresh and not self._scaler.is_identity:
            scale_gradients_([dense_values(item) for item in fresh], self._inv_scale)
        for parameter, earlier in self._earlier.items():
            new = parameter.grad
            if new is None:
                parameter.grad = earlier
            elif earlier.is_sparse or new.is_sparse:
                parameter.grad = _sum_of(earlier, new)
            else:
                # In place: whoever holds the gradient (a flat buffer, a logger) sees the sum.
                parameter.grad = _raised(earlier, new.dtype).add_(new)
        self._earlier = {}
        return check

    def abandon(self) -> None:
        """Drop the new gradients and put the earlier ones back."""
        for parameter in self._parameters:
            parameter.grad = self._earlier.get(parameter)
        self._earlier = {}


def _raised(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    return gradient if gradient.dtype == dtype else gradient.to(dtype)


def _sum_of(first: Tensor, second: Tensor) -> Tensor:
    # A dense tensor plus a sparse one is dense; the other order is refused by torch.
    total = second + first if first.is_sparse and not second.is_sparse else first + second
    return total.coalesce() if total.is_sparse else total

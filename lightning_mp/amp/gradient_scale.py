"""Gradients that a backward left, brought to the scale and dtype of the next one."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_clip import scale_gradients_
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.unscaled_gradients import UnscaledGradients

__all__ = ["cast_gradients", "rescale_gradients"]


@torch.no_grad()
def rescale_gradients(
    parameters: Iterable[Tensor],
    scaler: LossScaler,
    unscaled: UnscaledGradients,
    ratio: Tensor | None,
) -> None:
    """Bring gradients left from earlier backwards to the scale of the next one, in place.

    Args:
        parameters: Model parameters, each once.
        scaler: Scaler of the loss, at its new scale.
        unscaled: Which gradients are unscaled; none is afterwards.
        ratio: New scale over old; ``None`` if it did not move.
    """
    scaled_values, unscaled_values = [], []
    for parameter in parameters:
        if parameter.grad is not None:
            group = unscaled_values if unscaled.has(parameter) else scaled_values
            group.append(dense_values(parameter))
    unscaled.clear()
    if unscaled_values and not scaler.is_identity:
        scale_gradients_(unscaled_values, scaler.scale)
    if scaled_values and ratio is not None:
        scale_gradients_(scaled_values, ratio)


def cast_gradients(
    parameters: Iterable[Tensor], dtype: torch.dtype | None, unscaled: UnscaledGradients
) -> None:
    """Cast gradients; those that were unscaled are known as unscaled still.

    Args:
        parameters: Model parameters.
        dtype: Dtype of the gradients.
        unscaled: Which gradients are unscaled.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.dtype != dtype:
            is_unscaled = unscaled.has(parameter)
            parameter.grad = gradient.to(dtype)
            if is_unscaled:
                unscaled.add(parameter)

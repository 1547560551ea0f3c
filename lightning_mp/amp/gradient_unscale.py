"""Gradients unscaled into FP32 and checked on the way, in one pass over memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_clip import scale_gradients_
from lightning_mp.amp.gradient_raise import raise_gradients
from lightning_mp.amp.gradient_stats import KERNEL_DTYPES, measure_gradients
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.kernels.scale_copy import scale_copy_

__all__ = ["unscale_gradients"]


@torch.no_grad()
def unscale_gradients(
    parameters: Sequence[Tensor], masters: MasterWeights, inv_scale: Tensor | None
) -> Tensor:
    """Unscale gradients: half ones become FP32 in the memory layout of the masters.

    Args:
        parameters: Model parameters that have a gradient; sparse gradients are coalesced.
        masters: Masters of the model.
        inv_scale: Reciprocal of the gradients' loss scale; ``None`` for 1.

    Returns:
        Float32 vector, 1 for each unscaled gradient with an infinite or NaN element, else 0.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    is_raised = all(gradient.dtype == torch.float32 for gradient in gradients)
    if not _fit_one_pass(gradients) or (is_raised and inv_scale is None):
        raise_gradients(parameters, masters)
        values = [dense_values(parameter) for parameter in parameters]
        if inv_scale is not None:
            scale_gradients_(values, inv_scale)
        return measure_gradients(values).flags
    device = gradients[0].device
    outputs = [
        gradient
        if gradient.dtype == torch.float32
        else _float32_like(masters.of(parameter), device)
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    scale = torch.ones(()) if inv_scale is None else inv_scale
    flags = torch.zeros(len(gradients), device=device)
    scale_copy_(gradients, outputs, scale=scale.to(device, non_blocking=True), found_inf=flags)
    for parameter, output in zip(parameters, outputs, strict=True):
        parameter.grad = output
    return flags


def _fit_one_pass(gradients: Sequence[Tensor]) -> bool:
    return bool(gradients) and all(
        gradient.layout == torch.strided
        and gradient.dtype in KERNEL_DTYPES
        and gradient.device == gradients[0].device
        for gradient in gradients
    )


def _float32_like(target: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(target, dtype=torch.float32, device=device, requires_grad=False)

"""``lightning_mp::sgd_step_`` in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import check_range
from lightning_mp.kernels.reference.rows import StepRows

__all__ = ["sgd_step_"]


def sgd_step_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    copies: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    factor: Tensor | None,
    found_inf: Tensor | None,
    lr_tensor: Tensor | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    is_first: bool,
    clip_value: float | None,
    zero_gradients: bool,
    adopt: bool,
) -> None:
    """Update weights, momentum buffers and half copies by SGD.

    Args:
        gradients: As in :func:`lightning_mp.kernels.sgd.sgd_step_`, like all that follow.
        weights: FP32 weights, or remainders.
        copies: Half copies.
        momentum_buffers: Momentum buffers; none if ``momentum`` is 0.
        factor: Factor of gradients.
        found_inf: Nonzero for a step that changes nothing.
        lr_tensor: Learning rate on the device, in place of ``lr``.
        lr: Learning rate.
        momentum: Decay of the momentum buffers.
        dampening: Share of the gradient that they do not take.
        weight_decay: L2 penalty.
        nesterov: Whether the momentum is Nesterov's.
        maximize: Whether to go uphill.
        is_first: Whether the momentum buffers hold nothing yet.
        clip_value: Bound of gradient elements.
        zero_gradients: Whether gradients become 0.
        adopt: Whether half copies replace weights that they are not roundings of.
    """
    rows = StepRows(
        "sgd_step_",
        gradients,
        weights,
        copies,
        factor,
        found_inf,
        clip_value,
        zero_gradients,
        adopt,
    )
    states = {"momentum_buffers": momentum_buffers} if momentum or momentum_buffers else {}
    rows.check(states, lr=lr, lr_tensor=lr_tensor)
    check_range(rows.name, "momentum", momentum)
    check_range(rows.name, "weight_decay", weight_decay)
    rate = lr if lr_tensor is None else lr_tensor.reshape(())
    for chunk in rows.chunks():
        for index in chunk:
            weight, gradient = rows.load_weight(index), rows.load_gradient(index)
            if maximize:
                gradient.neg_()
            if weight_decay:
                gradient.add_(weight, alpha=weight_decay)
            if momentum:
                buffer = momentum_buffers[index]
                new_buffer = (
                    gradient.clone()
                    if is_first
                    else buffer.mul(momentum).add_(gradient, alpha=1 - dampening)
                )
                gradient = gradient.add(new_buffer, alpha=momentum) if nesterov else new_buffer
                buffer.copy_(torch.where(rows.is_skipped(index), buffer, new_buffer))
            rows.store(index, weight.sub_(gradient * rate))

"""``lightning_mp::adam_step_`` in plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from lightning_mp.kernels.reference.checks import check_length, check_range, check_scalars
from lightning_mp.kernels.reference.rows import StepRows
from lightning_mp.kernels.reference.stochastic_rounding import (
    places_of,
    random_words,
    stochastic_bfloat16,
)

__all__ = ["adam_step_"]


def adam_step_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    copies: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    factor: Tensor | None,
    found_inf: Tensor | None,
    lr_tensor: Tensor | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    clip_value: float | None,
    zero_gradients: bool,
    adopt: bool,
    seed: int,
) -> None:
    """Update weights, moments and half copies by Adam or AdamW, with torch's own fused update.

    Args:
        gradients: As in :func:`lightning_mp.kernels.adam.adam_step_`, like all that follow.
        weights: FP32 weights, or remainders.
        copies: Half copies.
        exp_avgs: First moments.
        exp_avg_sqs: Second moments.
        steps: Counters.
        factor: Factor of gradients.
        found_inf: Nonzero for a step that changes nothing.
        lr_tensor: Learning rate on the device, in place of ``lr``.
        lr: Learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        eps: Term of the denominator.
        weight_decay: Decay.
        decoupled: Whether the decay is AdamW's.
        maximize: Whether to go uphill.
        clip_value: Bound of gradient elements.
        zero_gradients: Whether gradients become 0.
        adopt: Whether half copies replace weights that they are not roundings of.
        seed: Seed of the roundings of bfloat16 moments.
    """
    rows = StepRows(
        "adam_step_",
        gradients,
        weights,
        copies,
        factor,
        found_inf,
        clip_value,
        zero_gradients,
        adopt,
    )
    moments = {"exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    rows.check(moments, lr=lr, lr_tensor=lr_tensor, state_dtypes=(torch.float32, torch.bfloat16))
    _check(rows.name, weights, steps, (beta1, beta2), eps, weight_decay)
    flag = None if found_inf is None else (found_inf != 0).float().reshape(())
    _count_empty(weights, steps, flag)
    for chunk in rows.chunks():
        masters = [rows.load_weight(index) for index in chunk]
        means = [exp_avgs[index].float().contiguous() for index in chunk]
        mean_squares = [exp_avg_sqs[index].float().contiguous() for index in chunk]
        adam(
            masters,
            [rows.load_gradient(index) for index in chunk],
            means,
            mean_squares,
            [],
            [steps[index] for index in chunk],
            fused=True,
            found_inf=flag,
            decoupled_weight_decay=decoupled,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr if lr_tensor is None else lr_tensor.reshape(()),
            weight_decay=weight_decay,
            eps=eps,
            maximize=maximize,
        )
        for position, index in enumerate(chunk):
            new = (means[position], mean_squares[position])
            if exp_avgs[index].dtype == torch.bfloat16:
                new = _rounded(new, places_of(weights[index]), seed, steps[index])
            for moment, value in zip((exp_avgs[index], exp_avg_sqs[index]), new, strict=True):
                moment.copy_(torch.where(rows.is_skipped(index), moment, value))
            rows.store(index, masters[position])


def _rounded(
    moments: tuple[Tensor, Tensor], places: Tensor, seed: int, step: Tensor
) -> tuple[Tensor, Tensor]:
    random = random_words(places, seed, step)
    # Each moment has half of the bits.
    return stochastic_bfloat16(moments[0], random), stochastic_bfloat16(moments[1], random >> 16)


def _check(
    name: str,
    weights: Sequence[Tensor],
    steps: Sequence[Tensor],
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    check_length(name, "steps", steps, ("weights", weights))
    counters = {f"steps[{index}]": (step, torch.float32) for index, step in enumerate(steps)}
    check_scalars(name, weights, counters)
    check_range(name, "beta1", betas[0], below=1.0)
    check_range(name, "beta2", betas[1], below=1.0)
    check_range(name, "eps", eps)
    check_range(name, "weight_decay", weight_decay)


def _count_empty(weights: Sequence[Tensor], steps: Sequence[Tensor], flag: Tensor | None) -> None:
    """Count the step of weights without elements, which torch's update leaves out."""
    for weight, step in zip(weights, steps, strict=True):
        if not weight.numel():
            step.add_(1 if flag is None else (1 - flag).view_as(step))

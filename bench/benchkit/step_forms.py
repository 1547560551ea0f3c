"""The ways to step that are compared: from scaled half gradients to clipped, updated half weights.

All do the same: unscale, look for overflows, clip to norm 1, update FP32 masters by AdamW, and
round them to the half weights of the model.
"""

from collections.abc import Callable, Mapping

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from benchkit.step_tensors import StepTensors
from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.l2_norm import l2_norm
from lightning_mp.kernels.scale_copy import scale_copy_

__all__ = [
    "ADOPTING",
    "APEX_ORDER",
    "BYTES_MOVED",
    "FOREACH",
    "FORMS",
    "LOOP",
    "OURS",
    "PASS_1",
    "PASS_2",
    "PASS_2_ADOPTING",
    "PASS_2_ROUNDED",
    "PASS_2_SPLIT",
    "ROUNDED",
    "SPLIT",
    "TORCH_FUSED",
    "forms_of",
    "parts_of",
]

Step = Callable[[], object]
MakeStep = Callable[[StepTensors], Step]

OURS, ADOPTING, SPLIT = "ours", "ours, adopting", "ours, split masters"
ROUNDED = "ours, split masters, bf16 moments"
TORCH_FUSED, FOREACH, APEX_ORDER, LOOP = "torch fused", "torch foreach", "Apex's order", "loop"

PASS_1, PASS_2 = "pass 1", "pass 2"
PASS_2_ADOPTING, PASS_2_SPLIT = "pass 2, adopting", "pass 2, split masters"
PASS_2_ROUNDED = "pass 2, split masters, bf16 moments"

_MAX_NORM = 1.0
_SETTINGS = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

# Bytes that a step asks to read and write per parameter; what a cache reads before it can write
# is not counted. The other ways make temporaries of torch's choice.
BYTES_MOVED: Mapping[str, int] = {
    # Pass 1 reads gradients (2). Pass 2 reads them again (2), reads and writes master and moments
    # (24), writes the half weight (2).
    OURS: 30,
    ADOPTING: 32,
    # Pass 2 reads and writes half weight and remainder instead of master and half weight.
    SPLIT: 28,
    # The same with moments of half the size.
    ROUNDED: 20,
    # Copy to FP32 (6), unscale (8), norm (4), clip (8), AdamW (28), copy back (6).
    TORCH_FUSED: 60,
    # Unscaled copy (6), norm (4), clip (8), AdamW (28), copy back (6).
    APEX_ORDER: 52,
    PASS_1: 2,
    PASS_2: 28,
    PASS_2_ADOPTING: 30,
    PASS_2_SPLIT: 26,
    PASS_2_ROUNDED: 18,
}


def forms_of(half_dtype: torch.dtype) -> dict[str, MakeStep]:
    """Name the ways to step that a half dtype has.

    Args:
        half_dtype: bfloat16 or float16; masters of the latter cannot be split.

    Returns:
        For each name a function that makes the step of some tensors.
    """
    return _without_split(FORMS, half_dtype)


def parts_of(half_dtype: torch.dtype) -> dict[str, MakeStep]:
    """Name the passes that our steps consist of.

    Args:
        half_dtype: bfloat16 or float16.

    Returns:
        For each name a function that makes the pass over some tensors.
    """
    return _without_split(_PARTS, half_dtype)


def _without_split(makers: Mapping[str, MakeStep], half_dtype: torch.dtype) -> dict[str, MakeStep]:
    can_split = half_dtype == torch.bfloat16
    return {name: make for name, make in makers.items() if can_split or "split" not in name}


def _pass_1(tensors: StepTensors) -> Step:
    def run() -> None:
        tensors.found_inf.zero_()
        gradient_stats_(
            tensors.gradients,
            norm=tensors.norm,
            factor=tensors.factor,
            found_inf=tensors.found_inf,
            inv_scale=tensors.inv_scale,
            max_norm=_MAX_NORM,
        )

    return run


def _pass_2(
    tensors: StepTensors, *, is_split: bool = False, is_rounded: bool = False, adopt: bool = False
) -> Step:
    weights = tensors.remainders if is_split else tensors.weights
    exp_avgs = tensors.rounded_exp_avgs if is_rounded else tensors.exp_avgs
    exp_avg_sqs = tensors.rounded_exp_avg_sqs if is_rounded else tensors.exp_avg_sqs

    def run() -> None:
        adam_step_(
            tensors.gradients,
            weights,
            tensors.halves,
            exp_avgs,
            exp_avg_sqs,
            tensors.steps,
            factor=tensors.factor,
            found_inf=tensors.found_inf,
            is_decoupled=True,
            adopt=adopt,
            **_SETTINGS,
        )

    return run


def _ours(tensors: StepTensors, **form: bool) -> Step:
    pass_1, pass_2 = _pass_1(tensors), _pass_2(tensors, **form)

    def run() -> None:
        pass_1()
        pass_2()

    return run


def _apex_order(tensors: StepTensors) -> Step:
    """Make Apex's five passes, each by an operation of ours that is one pass over memory."""
    gradients, one = tensors.full_gradients, tensors.one

    def run() -> None:
        found_inf = tensors.found_inf.zero_()
        scale_copy_(tensors.gradients, gradients, scale=tensors.inv_scale, found_inf=found_inf)
        norm, _ = l2_norm(gradients)
        clip = (_MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
        scale_copy_(gradients, gradients, scale=clip, found_inf=found_inf)
        adam_step_(
            gradients,
            tensors.weights,
            tensors.no_copies,
            tensors.exp_avgs,
            tensors.exp_avg_sqs,
            tensors.steps,
            found_inf=found_inf,
            is_decoupled=True,
            **_SETTINGS,
        )
        scale_copy_(tensors.weights, tensors.halves, scale=one, found_inf=found_inf)

    return run


def _torch_step(tensors: StepTensors, *, is_fused: bool) -> Step:
    gradients = tensors.full_gradients
    optimizer = _adamw(tensors, fused=is_fused, foreach=not is_fused)

    @torch.no_grad()
    def run() -> None:
        found_inf = tensors.found_inf.zero_()
        torch._foreach_copy_(gradients, tensors.gradients)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, tensors.inv_scale)
        clip_grad_norm_(tensors.masters, _MAX_NORM, foreach=True)
        if is_fused and tensors.device.type != "cpu":
            # So GradScaler spares the host the wait. On the CPU reading the flag costs less.
            optimizer.found_inf = found_inf  # pyright: ignore[reportAttributeAccessIssue]
        elif found_inf.item():
            return
        optimizer.step()
        torch._foreach_copy_(tensors.halves, tensors.weights)

    return run


def _loop(tensors: StepTensors) -> Step:
    gradients = tensors.full_gradients
    optimizer = _adamw(tensors, fused=False, foreach=False)

    @torch.no_grad()
    def run() -> None:
        for full, half in zip(gradients, tensors.gradients, strict=True):
            full.copy_(half).mul_(tensors.inv_scale)
        if not all(bool(full.isfinite().all()) for full in gradients):
            return
        clip_grad_norm_(tensors.masters, _MAX_NORM, foreach=False)
        optimizer.step()
        for half, weight in zip(tensors.halves, tensors.weights, strict=True):
            half.copy_(weight)

    return run


def _adamw(tensors: StepTensors, *, fused: bool, foreach: bool) -> AdamW:
    optimizer = AdamW(tensors.masters, fused=fused, foreach=foreach, **_SETTINGS)
    columns = (tensors.masters, tensors.steps, tensors.exp_avgs, tensors.exp_avg_sqs)
    for master, step, mean, mean_square in zip(*columns, strict=True):
        # Unless it is fused, torch wants the count on the host.
        count = step if fused else step.cpu()
        optimizer.state[master] = {"step": count, "exp_avg": mean, "exp_avg_sq": mean_square}
    return optimizer


FORMS: Mapping[str, MakeStep] = {
    OURS: _ours,
    ADOPTING: lambda tensors: _ours(tensors, adopt=True),
    SPLIT: lambda tensors: _ours(tensors, is_split=True),
    ROUNDED: lambda tensors: _ours(tensors, is_split=True, is_rounded=True),
    TORCH_FUSED: lambda tensors: _torch_step(tensors, is_fused=True),
    FOREACH: lambda tensors: _torch_step(tensors, is_fused=False),
    APEX_ORDER: _apex_order,
    LOOP: _loop,
}
_PARTS: Mapping[str, MakeStep] = {
    PASS_1: _pass_1,
    PASS_2: _pass_2,
    PASS_2_ADOPTING: lambda tensors: _pass_2(tensors, adopt=True),
    PASS_2_SPLIT: lambda tensors: _pass_2(tensors, is_split=True),
    PASS_2_ROUNDED: lambda tensors: _pass_2(tensors, is_split=True, is_rounded=True),
}

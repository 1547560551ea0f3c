"""Pass 2 of an O2 step: from gradient to master to half weight, for optimizers that are known.

The optimizer's own ``step`` needs an FP32 gradient of every weight at once. Here gradients of any
dtype are read once; the unscaling and the clipping are one factor; an overflow is decided on the
device, so the host never waits; and writes to the half weights from outside are adopted on the way.
"""

import sys
from collections.abc import Callable, Collection
from itertools import filterfalse
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.function_casts import FunctionCasts
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.native_installation import drop_weight_casts
from lightning_mp.amp.step_guard import StepGuard
from lightning_mp.kernels.group_steps import group_step_of
from lightning_mp.kernels.step_rows import StepInputs, StepRow, state_of

__all__ = ["apply_fused_step", "can_fuse"]

_UNSUPPORTED_FLAGS = ("amsgrad", "differentiable", "foreach")


def can_fuse(
    optimizer: Optimizer, masters: MasterWeights, *, own_hooks: Collection[Callable[..., Any]] = ()
) -> bool:
    """Tell whether an optimizer's step can be replaced without anybody noticing.

    Only torch's own Adam, AdamW and SGD and those of ``lightning_mp.optim`` qualify, exactly, with
    nothing hooked to or wrapped around ``step``.

    Args:
        optimizer: The optimizer.
        masters: Masters of the model.
        own_hooks: Step hooks of the engine's own, which know what they do.

    Returns:
        Whether :func:`apply_fused_step` gives what ``optimizer.step()`` would.
    """
    if group_step_of(optimizer) is None or not masters.has_masters:
        return False
    if _is_hooked(optimizer, own_hooks):
        return False
    return all(_is_plain_group(group, masters) for group in optimizer.param_groups)


@torch.no_grad()
def apply_fused_step(
    optimizer: Optimizer,
    masters: MasterWeights,
    *,
    found_inf: Tensor,
    factor: Tensor | None = None,
    clip_value: float | None = None,
) -> None:
    """Update masters, half weights and the optimizer's state from the model's gradients.

    Args:
        optimizer: An optimizer that :func:`can_fuse` accepts.
        masters: Masters of the model.
        found_inf: Float32 scalar; 1 leaves everything as it was, 0 does not.
        factor: Float32 scalar that gradients are multiplied by (unscaling, clipping by norm);
            ``None`` if they are ready to use.
        clip_value: Largest absolute value of a gradient element after the multiplication.
    """
    step_group = group_step_of(optimizer)
    assert step_group is not None
    inputs = StepInputs(factor=factor, found_inf=found_inf, clip_value=clip_value, adopt=True)
    for group in optimizer.param_groups:
        rows = []
        for item in group["params"]:
            parameter = masters.owner_of(item)
            gradient = parameter.grad
            if gradient is not None:
                weight, copy = masters.stored(parameter)
                rows.append(StepRow(gradient, weight, copy, state_of(optimizer, group, item)))
        step_group(group, rows, inputs)
    # What optimizer.step would have noted: learning-rate schedulers warn without it.
    optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]


def _is_hooked(optimizer: Optimizer, own_hooks: Collection[Callable[..., Any]]) -> bool:
    # The submodule is hidden behind the package's attribute of the same name.
    module: Any = sys.modules["torch.optim.optimizer"]
    step = optimizer.__dict__.get("step")
    # A learning-rate scheduler wraps whatever it finds, be it the class's own step or a user's.
    is_own = getattr(step, "__wrapped__", None) is type(optimizer).step
    pre_hooks = optimizer._optimizer_step_pre_hooks.values()
    post_hooks = [*optimizer._optimizer_step_post_hooks.values()]
    post_hooks += filterfalse(_is_of_o1, module._global_optimizer_post_hooks.values())
    return bool(
        any(not isinstance(hook, StepGuard) and hook not in own_hooks for hook in pre_hooks)
        or any(hook not in own_hooks for hook in post_hooks)
        or module._global_optimizer_pre_hooks
        or (step is not None and not (is_own and hasattr(step, "_wrapped_by_lr_sched")))
    )


def _is_fused_on(gradient: Tensor) -> bool:
    return gradient.is_cpu or gradient.is_cuda


def _is_of_o1(hook: Any) -> bool:
    # They only drop casts of weights, and nothing casts at this level.
    return hook is drop_weight_casts or getattr(hook, "__func__", None) is FunctionCasts.drop_casts


def _is_plain_group(group: dict[str, Any], masters: MasterWeights) -> bool:
    if any(group.get(flag) for flag in _UNSUPPORTED_FLAGS) or group["fused"] is False:
        return False
    for item in group["params"]:
        parameter = masters.owner_of(item)
        gradient = parameter.grad
        if masters.of(parameter).dtype != torch.float32:
            return False
        if gradient is not None and (gradient.is_sparse or not _is_fused_on(gradient)):
            return False
    return True

"""Pass 2 of an O2 step for torch's Adam and AdamW: from gradient to master to half weight.

The optimizer's own ``step`` needs an FP32 gradient of every weight at once. Here gradients are
raised to FP32 a few megabytes at a time and dropped again, the unscaling and the clipping are
one factor, and an overflow is decided on the device, so the host never waits.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from lightning_mp.amp.chunks import in_chunks
from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_clip import scale_gradients_
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.native_installation import drop_weight_casts
from lightning_mp.amp.step_guard import StepGuard
from lightning_mp.kernels.reference import AdamSettings, copy_to_float32, update_adam_

__all__ = ["apply_fused_adam", "can_fuse_adam"]

_FUSED_DEVICES = ("cpu", "cuda")
_UNSUPPORTED_FLAGS = ("amsgrad", "maximize", "differentiable", "capturable", "foreach")


def can_fuse_adam(optimizer: Optimizer, masters: MasterWeights) -> bool:
    """Tell whether an optimizer's step can be replaced without anybody noticing.

    Only torch's own Adam and AdamW qualify, exactly, in their plain form, with nothing hooked to
    or wrapped around ``step``.

    Args:
        optimizer: The optimizer; its parameter groups hold model parameters.
        masters: Masters of the model.

    Returns:
        Whether :func:`apply_fused_adam` gives what ``optimizer.step()`` would.
    """
    if type(optimizer) not in (Adam, AdamW) or not masters.has_masters or _is_hooked(optimizer):
        return False
    return all(_is_plain_group(group) for group in optimizer.param_groups)


def apply_fused_adam(
    optimizer: Optimizer,
    masters: MasterWeights,
    *,
    found_inf: Tensor,
    factor: Tensor | None = None,
    clip_value: float | None = None,
) -> None:
    """Update masters and moments from the gradients of the model's parameters.

    Args:
        optimizer: An optimizer that :func:`can_fuse_adam` accepts, model parameters in its groups.
        masters: Masters of the model.
        found_inf: Float32 scalar; 1 leaves masters, moments and counters as they were, 0 does not.
        factor: Float32 scalar that gradients are multiplied by (unscaling, clipping by norm);
            ``None`` if they are ready to use.
        clip_value: Largest absolute value of a gradient element after the multiplication.
    """
    for group in optimizer.param_groups:
        settings = _settings(group, is_adamw=isinstance(optimizer, AdamW))
        for chunk in in_chunks([item for item in group["params"] if item.grad is not None]):
            targets = [masters.of(parameter).detach() for parameter in chunk]
            states = [_state(optimizer, parameter, masters.of(parameter)) for parameter in chunk]
            gradients = _float32_gradients(chunk, targets, is_ready=factor is None)
            if factor is not None:
                scale_gradients_(gradients, factor)
            if clip_value is not None:
                torch._foreach_clamp_min_(gradients, -clip_value)
                torch._foreach_clamp_max_(gradients, clip_value)
            update_adam_(targets, gradients, states, settings, found_inf)
    # What optimizer.step would have noted: learning-rate schedulers warn without it.
    optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]


def _is_hooked(optimizer: Optimizer) -> bool:
    # The submodule is hidden behind the package's attribute of the same name.
    module: Any = sys.modules["torch.optim.optimizer"]
    step = optimizer.__dict__.get("step")
    # A learning-rate scheduler wraps whatever it finds, be it the class's own step or a user's.
    is_own = getattr(step, "__wrapped__", None) is type(optimizer).step
    pre_hooks = optimizer._optimizer_step_pre_hooks.values()
    # O1's hook only drops casts of weights, and nothing casts at this level.
    post_hooks = [*optimizer._optimizer_step_post_hooks.values()]
    post_hooks += module._global_optimizer_post_hooks.values()
    return bool(
        any(not isinstance(hook, StepGuard) for hook in pre_hooks)
        or any(hook is not drop_weight_casts for hook in post_hooks)
        or module._global_optimizer_pre_hooks
        or (step is not None and not (is_own and hasattr(step, "_wrapped_by_lr_sched")))
    )


def _is_plain_group(group: dict[str, Any]) -> bool:
    if any(group[flag] for flag in _UNSUPPORTED_FLAGS) or group["fused"] is False:
        return False
    return all(
        parameter.device.type in _FUSED_DEVICES
        and parameter.is_floating_point()
        and (parameter.grad is None or not parameter.grad.is_sparse)
        for parameter in group["params"]
    )


def _settings(group: dict[str, Any], *, is_adamw: bool) -> AdamSettings:
    beta1, beta2 = group["betas"]
    return AdamSettings(
        lr=group["lr"],
        beta1=float(beta1),
        beta2=float(beta2),
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        is_decoupled=group.get("decoupled_weight_decay", is_adamw),
    )


def _state(optimizer: Optimizer, parameter: Tensor, target: Tensor) -> dict[str, Tensor]:
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=target.device)
        state["exp_avg"] = torch.zeros_like(target, requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(target, requires_grad=False)
    elif state["step"].device != target.device:
        # A plain torch optimizer loads its counter to the host, where no fused kernel can read it.
        state["step"] = state["step"].to(target.device)
    return state


def _float32_gradients(
    parameters: Sequence[Tensor], targets: Sequence[Tensor], *, is_ready: bool
) -> list[Tensor]:
    gradients = [dense_values(parameter) for parameter in parameters]
    if is_ready and all(
        gradient.dtype == torch.float32 and gradient.stride() == target.stride()
        for gradient, target in zip(gradients, targets, strict=True)
    ):
        return gradients
    return copy_to_float32(gradients, targets)

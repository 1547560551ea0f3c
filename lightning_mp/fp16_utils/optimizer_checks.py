"""What FP16_Optimizer is given: checks, and the scaler that its arguments ask for."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.amp.scaler_state import ScalerState
from lightning_mp.fp16_utils.dynamic_loss_scaler import DynamicLossScaler
from lightning_mp.fp16_utils.loss_scaler import LossScaler

__all__ = ["check_optimizer", "check_state", "make_scaler", "scaler_state"]

_SCALER_ARGUMENTS = ("init_scale", "scale_factor", "scale_window")
_STATE_KEYS = ("loss_scaler", "overflow", "optimizer_state_dict", "fp32_from_fp16")


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer over half and FP32 parameters.

    Args:
        optimizer: What is to be wrapped.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"init_optimizer = {type(optimizer).__name__}; a torch.optim.Optimizer is needed; "
            "wrap the optimizer itself, once"
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.dtype not in (*HALF_DTYPES, torch.float32):
                raise TypeError(
                    f"a parameter of shape {tuple(parameter.shape)} has dtype {parameter.dtype}; "
                    "allowed are torch.float16, torch.bfloat16 and torch.float32; cast the model "
                    "before the optimizer is made"
                )


def make_scaler(
    static_loss_scale: float, is_dynamic: bool, arguments: Mapping[str, Any] | None
) -> LossScaler:
    """Make the scaler that the arguments of FP16_Optimizer ask for.

    Args:
        static_loss_scale: Fixed scale; not used if the scale moves.
        is_dynamic: Whether the scale moves.
        arguments: Arguments of :class:`DynamicLossScaler`.

    Returns:
        The scaler.

    Raises:
        ValueError: If an argument is unknown or out of its range.
    """
    unknown = set(arguments or ()) - set(_SCALER_ARGUMENTS)
    if unknown:
        raise ValueError(
            f"dynamic_loss_args has {sorted(unknown)}; allowed are {list(_SCALER_ARGUMENTS)}; "
            "leave the others out"
        )
    if is_dynamic:
        return DynamicLossScaler(**(arguments or {}))
    if arguments:
        warnings.warn(
            "dynamic_loss_args has no effect: dynamic_loss_scale is False. Set it to True, or "
            "leave the arguments out.",
            stacklevel=3,
        )
    return LossScaler(static_loss_scale)


def check_state(state: Mapping[str, Any], groups: list[list[Tensor]]) -> None:
    """Refuse a saved state that does not fit the masters.

    Args:
        state: The state.
        groups: Masters per parameter group.

    Raises:
        ValueError: If a key is missing, or shapes differ.
    """
    missing = [key for key in _STATE_KEYS if key not in state]
    if missing:
        raise ValueError(
            f"the state has no {missing}; {list(_STATE_KEYS)} are needed; pass what "
            "FP16_Optimizer.state_dict() returned"
        )
    expected = [[tuple(item.shape) for item in group] for group in groups]
    found = [[tuple(item.shape) for item in group] for group in state["fp32_from_fp16"]]
    if found != expected:
        raise ValueError(
            f"the state has masters of the shapes {found}; expected {expected}; load it into the "
            "optimizer of the same model, with the same parameter groups"
        )


def scaler_state(saved: Any) -> Mapping[str, Any]:
    """Read the scaler of a saved state.

    Args:
        saved: What a scaler's ``state_dict`` returned, or a scaler object of Apex.

    Returns:
        A state that a scaler's ``load_state_dict`` takes.

    Raises:
        ValueError: If it is neither, or its values are impossible.
    """
    state = saved if isinstance(saved, Mapping) else _state_of_object(saved)
    ScalerState.parse(state, hysteresis=1)
    return state


def _state_of_object(saved: Any) -> dict[str, Any]:
    if not hasattr(saved, "cur_scale"):
        raise ValueError(
            f"loss_scaler = {saved!r}; a mapping or a scaler object of Apex is needed; pass what "
            "FP16_Optimizer.state_dict() returned"
        )
    state = {"loss_scale": float(saved.cur_scale)}
    if hasattr(saved, "last_overflow_iter"):
        num_good = saved.cur_iter - saved.last_overflow_iter - 1
        return {**state, "growth_tracker": num_good % saved.scale_window}
    return {**state, "is_dynamic": False}

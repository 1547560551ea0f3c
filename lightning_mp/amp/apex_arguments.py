"""Checks of what is passed to ``amp.initialize``; a refused call changes nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import _amp_state
from lightning_mp.amp.model_cast import check_castable
from lightning_mp.amp.opt_levels import HALF_DTYPES, OptLevelProperties

__all__ = [
    "check_models",
    "check_optimizers",
    "model_list",
    "optimizer_list",
    "parse_num_losses",
    "raise_half_parameters",
]


def model_list(models: Any) -> list[nn.Module]:
    """Return the models as a list.

    Args:
        models: A module, or a list or tuple of modules.

    Raises:
        TypeError: It is something else, or empty.
    """
    given = list(models) if isinstance(models, list | tuple) else [models]
    for model in given:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"models = {type(model).__name__}; allowed: a torch.nn.Module or a list of them; "
                "pass models first and optimizers second"
            )
    if not given:
        raise TypeError("models is empty; allowed: at least one torch.nn.Module; pass the model")
    return given


def optimizer_list(optimizers: Any) -> list[Optimizer]:
    """Return the optimizers as a list.

    Args:
        optimizers: A torch optimizer, a list or tuple of them, or ``None``.

    Raises:
        TypeError: It is something else.
        ValueError: One of them is there twice.
    """
    if optimizers is None:
        return []
    given = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    for optimizer in given:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizers = {type(optimizer).__name__}; allowed: a torch.optim.Optimizer, a "
                "list of them, or None; pass torch optimizers, and FP16_Optimizer none: it scales "
                "the loss by itself"
            )
    if len({id(optimizer) for optimizer in given}) < len(given):
        raise ValueError("an optimizer is there twice; allowed: each once; drop the repetition")
    return given


def parse_num_losses(num_losses: int) -> int:
    """Return the number of losses.

    Args:
        num_losses: A positive int.

    Raises:
        ValueError: It is not.
    """
    if isinstance(num_losses, bool) or not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(
            f"num_losses = {num_losses!r}; allowed: a whole number above 0; count the losses that "
            "have a backward of their own"
        )
    return num_losses


def check_models(models: Sequence[nn.Module], properties: OptLevelProperties) -> None:
    """Refuse wrapped models and, unless the user allows them, half ones.

    Args:
        models: The models.
        properties: Resolved properties.

    Raises:
        ValueError: One of the models is in that state.
    """
    for model in models:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"the model is wrapped in {type(model).__name__}; allowed: the bare module; call "
                "amp.initialize first and wrap what it returns"
            )
        half = [item for item in model.named_parameters() if item[1].dtype in HALF_DTYPES]
        if properties.half_dtype is not None:
            check_castable(model, {parameter for _, parameter in half})
        for name, parameter in half:
            if not _amp_state.allow_incoming_model_not_fp32:
                raise ValueError(
                    f"parameter {name!r} has dtype {parameter.dtype}; allowed: torch.float32; "
                    "remove .half() or .bfloat16() and let amp.initialize cast, or set "
                    "amp._amp_state.allow_incoming_model_not_fp32 = True"
                )


@torch.no_grad()
def raise_half_parameters(models: Sequence[nn.Module]) -> None:
    """Turn half parameters into float32 ones, in place, as every level starts from these.

    Args:
        models: Models that :func:`check_models` accepts.
    """
    for model in models:
        for parameter in model.parameters():
            if parameter.dtype in HALF_DTYPES:
                parameter.grad = None
                parameter.data = parameter.data.float()


def check_optimizers(
    optimizers: Sequence[Optimizer], models: Sequence[nn.Module], properties: OptLevelProperties
) -> None:
    """Refuse optimizers that were set up before, or that no scale can serve.

    Args:
        optimizers: The optimizers.
        models: The models.
        properties: Resolved properties.

    Raises:
        ValueError: One of the optimizers cannot be set up.
    """
    known = {parameter for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        name = type(optimizer).__name__
        session = _amp_state.session_of(optimizer)
        if session is not None and session.engine is not None:
            raise ValueError(
                f"{name} was initialised before; allowed: once; make a new optimizer for a new "
                "amp.initialize, or keep the old set-up"
            )
        if isinstance(optimizer, torch.optim.LBFGS) and properties.is_dynamic:
            raise ValueError(
                f"{name} evaluates its closure several times in a step, which loss_scale = "
                "'dynamic' cannot follow; allowed: a fixed scale; pass loss_scale=1.0"
            )
        members = {item for group in optimizer.param_groups for item in group["params"]}
        if members and not members & known:
            raise ValueError(
                f"{name} holds no parameter of the models; allowed: optimizers over "
                "model.parameters(); make it after the model was moved to its device, and pass "
                "both to the same amp.initialize"
            )

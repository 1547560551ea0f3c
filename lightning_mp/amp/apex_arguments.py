"""Checks of what is passed to the Apex API; a refused call changes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import _amp_state
from lightning_mp.amp.model_cast import check_castable
from lightning_mp.amp.opt_levels import HALF_DTYPES, HALF_NAMES, OptLevelProperties

__all__ = [
    "check_are_optimizers",
    "check_models",
    "check_optimizers",
    "check_output_dtype",
    "check_scaled",
    "model_list",
    "optimizer_list",
    "parse_half_dtype",
    "parse_num_losses",
    "raise_half_parameters",
    "scaled_optimizers",
    "scaler_bounds",
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


def parse_half_dtype(half_dtype: Any) -> torch.dtype:
    """Return a half dtype.

    Args:
        half_dtype: float16 or bfloat16, or ``"fp16"`` or ``"bf16"``.

    Raises:
        ValueError: It is something else.
    """
    dtype = HALF_NAMES.get(half_dtype) if isinstance(half_dtype, str) else half_dtype
    if not isinstance(dtype, torch.dtype) or dtype not in HALF_DTYPES:
        raise ValueError(
            f"half_dtype = {half_dtype!r}; allowed are torch.float16 and torch.bfloat16, or "
            f"{' and '.join(map(repr, HALF_NAMES))}; choose one, or opt_level='O0' for float32"
        )
    return dtype


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


def scaler_bounds(min_loss_scale: float | None, max_loss_scale: float) -> dict[str, Any]:
    """Return the arguments of a loss scaler that follow from floor and cap.

    Args:
        min_loss_scale: Floor; ``None`` and 0 for the usual one.
        max_loss_scale: Cap.

    Raises:
        ValueError: One of them is no number; its range is for the scaler to check.
    """
    bounds = {"max_loss_scale": max_loss_scale, "min_loss_scale": min_loss_scale or 2.0**-10}
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"{name} = {value!r}; allowed: a positive number; leave it out for its default"
            )
    start = min(2.0**16, bounds["max_loss_scale"])
    return {**bounds, "init_scale": max(start, bounds["min_loss_scale"])}


def check_output_dtype(dtype: torch.dtype | None) -> None:
    """Refuse what outputs cannot be cast to.

    Args:
        dtype: Dtype of the models' outputs.

    Raises:
        ValueError: It is no floating dtype, nor ``None``.
    """
    is_floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype is not None and not is_floating:
        raise ValueError(
            f"cast_model_outputs = {dtype!r}; allowed: a floating dtype such as torch.float16; "
            "leave it out for torch.float32"
        )


def scaled_optimizers(optimizers: Any) -> list[Any]:
    """Return what was passed to ``scale_loss`` as a list; what is in it is for others to check.

    Args:
        optimizers: An optimizer, or several in any iterable.
    """
    # A tensor without dimensions has an iterator that fails.
    if isinstance(optimizers, Tensor) or not isinstance(optimizers, Iterable):
        return [optimizers]
    return list(optimizers)


def check_scaled(loss: Any, optimizers: Sequence[Optimizer], loss_id: int, num_losses: int) -> None:
    """Refuse what ``scale_loss`` cannot surround a backward of.

    Args:
        loss: The loss.
        optimizers: The optimizers.
        loss_id: Index of the loss's scaler.
        num_losses: Number of scalers.

    Raises:
        TypeError: The loss is no tensor, or an optimizer is none.
        ValueError: There is no optimizer.
        IndexError: There is no such scaler.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"loss = {type(loss).__name__}; allowed: a tensor with a graph; pass what the "
            "criterion returned, before .item()"
        )
    check_are_optimizers(optimizers)
    if not optimizers:
        raise ValueError(
            "scale_loss has no optimizer, so nothing would be unscaled; allowed: one or more; "
            "write amp.scale_loss(loss, optimizer)"
        )
    if loss_id not in range(num_losses):
        raise IndexError(
            f"loss_id = {loss_id!r}; allowed: 0 to {num_losses - 1}; call amp.initialize(..., "
            "num_losses=loss_id + 1) for more scalers"
        )


def check_are_optimizers(optimizers: Sequence[Any]) -> None:
    """Refuse what is no optimizer where a loss is to be scaled.

    Args:
        optimizers: The optimizers.

    Raises:
        TypeError: One of them is none.
    """
    for item in optimizers:
        if not isinstance(item, Optimizer):
            raise TypeError(
                f"{type(item).__name__} in place of an optimizer; allowed: a torch.optim.Optimizer "
                "or several; pass what amp.initialize returned"
            )


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
        half = list(_half_tensors(model))
        if properties.half_dtype is not None:
            check_castable(model, {tensor for _, tensor in half})
        for name, tensor in half:
            if not _amp_state.allow_incoming_model_not_fp32:
                raise ValueError(
                    f"{name} has dtype {tensor.dtype}; allowed: torch.float32; remove .half() or "
                    ".bfloat16() and let amp.initialize cast. A model that was initialised before, "
                    "or a copy of it, is half too: load its state_dict() into a new model. Or set "
                    "amp._amp_state.allow_incoming_model_not_fp32 = True"
                )


@torch.no_grad()
def raise_half_parameters(models: Sequence[nn.Module]) -> None:
    """Turn half parameters and buffers into float32 ones, as every level starts from these.

    Args:
        models: Models that :func:`check_models` accepts.
    """
    for model in models:
        for _, tensor in list(_half_tensors(model)):
            tensor.grad = None
            tensor.data = tensor.data.float()


def _half_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if tensor.dtype in HALF_DTYPES:
                yield f"{kind} {name!r}", tensor


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

"""Which parameters and buffers of a model an opt level turns to half, and what is refused.

Parameters are cast one by one and in place, so tied weights stay tied and whoever holds a Parameter
(an optimizer, a DDP wrapper) keeps holding the right one. Norm layers stay FP32 because their
statistics lose too much in half; torchmetrics metrics are counters, not model, and are left alone.
"""

import sys
from collections.abc import Container, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from lightning_mp.amp.opt_levels import HALF_DTYPES, OptLevelProperties

__all__ = ["castable_buffers", "castable_parameters", "check_castable", "kept_module_types"]

_BATCH_NORMS: tuple[type[nn.Module], ...] = (_BatchNorm,)
_NORMS: tuple[type[nn.Module], ...] = (
    _BatchNorm,
    _InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def kept_module_types(properties: OptLevelProperties) -> tuple[type[nn.Module], ...]:
    """Return the module classes whose own parameters and buffers stay FP32 at an opt level.

    Args:
        properties: Resolved properties of the level.

    Returns:
        All norm layers, the batch norms only, or nothing.
    """
    if properties.keep_norms_fp32:
        return _NORMS
    return _BATCH_NORMS if properties.keep_batchnorm_fp32 else ()


def check_castable(module: nn.Module, known: Container[Tensor] = ()) -> None:
    """Refuse a model that cannot be cast: wrapped, scripted, half, double or lazy.

    Args:
        module: The model as the user built it.
        known: Parameters that were cast with another model already.

    Raises:
        ValueError: The model, or a part of it, is in one of those states. Nothing was changed.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"the model's part {name or '<root>'!r} is wrapped in {type(part).__name__}; an "
                "opt level casts the bare model. Hand over the bare module and wrap it afterwards "
                "(a Trainer does that itself with strategy='ddp')."
            )
        if isinstance(part, torch.jit.ScriptModule) and _has_floating(part):
            raise ValueError(
                f"the model's part {name or '<root>'!r} is a torch.jit module with weights; an opt "
                "level works on the Python module it was made from. Put that in, and script it "
                "after training."
            )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ValueError(
                f"parameter {name!r} has no shape yet (a lazy module); FP32 master weights need "
                "its values. Run one forward pass before training starts."
            )
    dtypes = {item.dtype for item in module.parameters() if item.is_floating_point()}
    if dtypes == {torch.float64}:
        raise ValueError(
            "all parameters have dtype torch.float64; an opt level casts torch.float32 models. "
            "Remove the .double() call, or train with precision='64-true'."
        )
    for name, parameter in module.named_parameters():
        if parameter.dtype in HALF_DTYPES and parameter not in known:
            raise ValueError(
                f"parameter {name!r} has dtype {parameter.dtype}; the model must come in "
                "torch.float32, since master weights made from half values have lost their low "
                "bits. Remove the .half()/.bfloat16() call: the opt level casts by itself. If an "
                "earlier set-up did it (Fabric's), call fabric.strategy.precision.teardown() first."
            )


def castable_parameters(
    module: nn.Module, kept: tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each FP32 parameter that is to become half, once, under its first name.

    Args:
        module: The model.
        kept: Module classes whose own parameters stay as they are.

    Yields:
        Qualified name and parameter.
    """
    seen: set[nn.Parameter] = set()
    kept_parameters = {
        parameter
        for _, part in module.named_modules()
        if isinstance(part, kept)
        for own in (part, *_parametrizations(part))
        for parameter in own.parameters(recurse=False)
    }
    for prefix, part in _cast_parts(module, kept):
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.dtype != torch.float32 or parameter in seen:
                continue
            seen.add(parameter)
            # A weight shared with a norm layer stays what the norm layer needs.
            if parameter not in kept_parameters:
                yield prefix + name, parameter


def castable_buffers(
    module: nn.Module, kept: tuple[type[nn.Module], ...]
) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield each FP32 buffer that is to become half.

    Args:
        module: The model.
        kept: Module classes whose own buffers stay as they are.

    Yields:
        Owner, name within the owner, and buffer.
    """
    for _, part in _cast_parts(module, kept):
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.dtype == torch.float32:
                yield part, name, buffer


def _has_floating(part: nn.Module) -> bool:
    tensors = [*part.parameters(), *part.buffers()]
    return any(item.is_floating_point() for item in tensors)


def _cast_parts(
    module: nn.Module, kept: tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    metrics = _metric_types()
    seen: set[nn.Module] = set()
    pending = [("", module)]
    while pending:
        prefix, part = pending.pop()
        if part in seen or isinstance(part, metrics):
            continue
        seen.add(part)
        if isinstance(part, kept):
            # A parametrized norm layer has its weights in there.
            seen.update(_parametrizations(part))
        else:
            yield prefix, part
        children = [(f"{prefix}{name}.", child) for name, child in part.named_children()]
        pending += reversed(children)


def _parametrizations(part: nn.Module) -> tuple[nn.Module, ...]:
    parametrizations = getattr(part, "parametrizations", None)
    return tuple(parametrizations.modules()) if isinstance(parametrizations, nn.Module) else ()


def _metric_types() -> tuple[type[nn.Module], ...]:
    # A model can hold a metric only if torchmetrics was imported, so nothing is imported for it.
    torchmetrics = sys.modules.get("torchmetrics")
    return () if torchmetrics is None else (torchmetrics.Metric,)

"""FP32 copies of a model's parameters, kept by the training loop itself."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "master_params_to_model_params",
    "model_grads_to_master_grads",
    "prep_param_lists",
    "to_python_float",
]


def prep_param_lists(
    model: nn.Module, flat_master: bool = False
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """List a model's trainable parameters and make FP32 masters of them for the optimizer.

    Args:
        model: A model, usually in half.
        flat_master: Whether to make one master of all parameters, joined to one dimension. They
            have to share dtype and device.

    Returns:
        The model's parameters that require a gradient, and the masters: one for each, or a single
        one.

    Raises:
        ValueError: If nothing is trainable, or ``flat_master`` finds several dtypes or devices.

    Example:
        >>> model = nn.Linear(7, 3).half()
        >>> model_params, master_params = prep_param_lists(model, flat_master=True)
        >>> len(model_params), master_params[0].shape, master_params[0].dtype
        (2, torch.Size([24]), torch.float32)
    """
    model_params = [item for item in model.parameters() if item.requires_grad]
    if not model_params:
        raise ValueError(
            f"{type(model).__name__} has 0 trainable parameters; at least one is needed; call "
            "requires_grad_() on those to train"
        )
    if not flat_master:
        return model_params, [_master_of(item.detach()) for item in model_params]
    kinds = {f"{item.dtype} on {item.device}" for item in model_params}
    if len(kinds) > 1:
        raise ValueError(
            f"flat_master = True with parameters in {', '.join(sorted(kinds))}; one dtype on one "
            "device is allowed; use flat_master=False, or cast the model with model.half()"
        )
    return model_params, [_master_of(_joined([item.detach() for item in model_params]))]


@torch.no_grad()
def model_grads_to_master_grads(
    model_params: Sequence[Tensor], master_params: Sequence[Tensor], flat_master: bool = False
) -> None:
    """Copy the gradients of the model to the masters, in FP32.

    Args:
        model_params: First list of :func:`prep_param_lists`.
        master_params: Second list.
        flat_master: As given there. A parameter without a gradient then counts as having zeros;
            else its master has no gradient either.

    Raises:
        ValueError: If the lists do not belong together.
    """
    _check_lists(model_params, master_params, flat_master)
    if flat_master:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model_params]
        _set_gradient(master_params[0], _joined(grads))
        return
    for parameter, master in zip(model_params, master_params, strict=True):
        _set_gradient(master, parameter.grad)


@torch.no_grad()
def master_params_to_model_params(
    model_params: Sequence[Tensor], master_params: Sequence[Tensor], flat_master: bool = False
) -> None:
    """Copy the masters to the parameters of the model, rounded to their dtype.

    Args:
        model_params: First list of :func:`prep_param_lists`.
        master_params: Second list.
        flat_master: As given there.

    Raises:
        ValueError: If the lists do not belong together.
    """
    _check_lists(model_params, master_params, flat_master)
    values = list(master_params)
    if flat_master:
        parts = master_params[0].split([item.numel() for item in model_params])
        values = [part.view(item.shape) for part, item in zip(parts, model_params, strict=True)]
    for parameter, value in zip(model_params, values, strict=True):
        parameter.copy_(value)


def to_python_float(t: Any) -> float:
    """Return the value of a one-element tensor, or the first element of another sequence.

    Args:
        t: A tensor or array of one element, or a sequence.

    Returns:
        The number. Waits for the device that the tensor is on.
    """
    return t.item() if hasattr(t, "item") else t[0]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([item.reshape(-1) for item in tensors])


def _master_of(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.to(torch.float32, copy=True))


def _set_gradient(master: Tensor, gradient: Tensor | None) -> None:
    if gradient is None:
        master.grad = None
    elif master.grad is None:
        master.grad = torch.empty_like(master, requires_grad=False).copy_(gradient)
    else:
        master.grad.copy_(gradient)


def _check_lists(
    model_params: Sequence[Tensor], master_params: Sequence[Tensor], flat_master: bool
) -> None:
    sizes = [item.numel() for item in model_params]
    expected = [sum(sizes)] if flat_master else sizes
    found = [item.numel() for item in master_params]
    if found != expected:
        raise ValueError(
            f"master_params with {found} elements for model_params with {sizes} and flat_master = "
            f"{flat_master}; expected {expected}; pass both lists of one prep_param_lists call, "
            "with the same flat_master"
        )

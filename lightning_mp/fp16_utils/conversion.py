"""Casts of whole networks, made in place: Parameters stay the objects that they are.

Only batch norms with weights stay FP32, as in Apex. Opt levels keep every norm layer.
"""

from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_mp.fp16_utils.input_cast import tofp16

__all__ = ["BN_convert_float", "convert_module", "convert_network", "network_to_half"]

_Module = TypeVar("_Module", bound=nn.Module)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def convert_network(network: _Module, dtype: torch.dtype) -> _Module:
    """Cast a network in place, all but batch norms with weights.

    Args:
        network: Any module, wrapped for data parallelism or not.
        dtype: float16, bfloat16 or float32.

    Returns:
        The same network.

    Raises:
        ValueError: If ``dtype`` is another one; nothing is changed then.

    Example:
        >>> net = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
        >>> [item.dtype for item in convert_network(net, torch.bfloat16).parameters()][1:3]
        [torch.bfloat16, torch.float32]
    """
    _check_dtype(dtype)
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.affine:
            continue
        convert_module(module, dtype)
        if isinstance(module, nn.RNNBase):
            # Its weights were parts of one buffer, which fast kernels want.
            module.flatten_parameters()
    return network


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast a module's own floating parameters, their gradients and its floating buffers in place.

    Args:
        module: Any module; its children are left alone.
        dtype: float16, bfloat16 or float32.

    Raises:
        ValueError: If ``dtype`` is another one; nothing is changed then.
    """
    _check_dtype(dtype)
    for parameter in module.parameters(recurse=False):
        if parameter.is_floating_point():
            # torch wants gradients in the dtype of the parameter, so this one is out meanwhile.
            gradient, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None if gradient is None else gradient.to(dtype)
    for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.to(dtype))


def BN_convert_float(module: _Module) -> _Module:
    """Cast every batch norm with weights back to FP32, in place.

    Args:
        module: Any module.

    Returns:
        The same module.
    """
    for part in module.modules():
        if isinstance(part, _BatchNorm) and part.affine:
            convert_module(part, torch.float32)
    return module


def network_to_half(network: nn.Module) -> nn.Sequential:
    """Cast a network to float16, all but batch norms with weights, and have it cast its inputs.

    Args:
        network: Any module; cast in place.

    Returns:
        A new module that takes what the network took.
    """
    return nn.Sequential(tofp16(), convert_network(network, torch.float16))


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise ValueError(
            f"dtype = {dtype!r}; allowed are torch.float16, torch.bfloat16 and torch.float32; "
            "pass one of them"
        )

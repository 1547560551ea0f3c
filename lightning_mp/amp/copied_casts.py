"""Casts around the forward of a copy of a converted model.

A copy has no masters and no engine: what it keeps is its half weights, and these casts, so that it
takes FP32 inputs and returns FP32 outputs as the model does.
"""

from typing import Any

import torch
from torch import nn

from lightning_mp.amp.forward_mode import HalfForwardMode
from lightning_mp.amp.own_hook import function_of
from lightning_mp.amp.tree import cast_floating

__all__ = ["CopiedCasts"]


class CopiedCasts:
    """Cast around the forward of a copied model, while it has half weights.

    The object knows no module and may be copied and pickled. A copy that was raised to FP32 since
    is an ordinary model.

    Args:
        half_dtype: Dtype of the half weights, and of the inputs.
        output_dtype: Dtype of the floating outputs.
    """

    def __init__(self, half_dtype: torch.dtype, output_dtype: torch.dtype) -> None:
        self._half_dtype = half_dtype
        self._output_dtype = output_dtype
        # One entry per forward in progress, None for one that is left as it is.
        self._modes: list[HalfForwardMode | None] = []

    def __reduce__(self) -> Any:
        """Leave forwards in progress out of copies."""
        return (CopiedCasts, (self._half_dtype, self._output_dtype))

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Enter the forward mode and cast the inputs."""
        if torch.compiler.is_compiling():
            return None
        is_own = function_of(module.forward) is type(module).forward
        if not is_own or not self._is_half(module):
            self._modes.append(None)
            return None
        mode = HalfForwardMode(self._half_dtype)
        mode.__enter__()
        self._modes.append(mode)
        return cast_floating(args, self._half_dtype), cast_floating(kwargs, self._half_dtype)

    def before_recurrence(self, module: nn.Module, args: Any) -> Any:
        """Cast the inputs of a recurrent part."""
        if torch.compiler.is_compiling() or not self._is_half(module):
            return None
        return cast_floating(args, self._half_dtype)

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Leave the forward mode and cast the outputs."""
        if torch.compiler.is_compiling():
            return None
        # Empty if a pre-hook that ran before ours has raised.
        mode = self._modes.pop() if self._modes else None
        if mode is None:
            return None
        mode.__exit__(None, None, None)
        return cast_floating(output, self._output_dtype)

    def _is_half(self, module: nn.Module) -> bool:
        return any(item.dtype == self._half_dtype for item in module.parameters())

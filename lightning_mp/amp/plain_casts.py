"""Inputs and outputs of a model in the dtypes of the user's choice, where nothing else is cast."""

from typing import Any

import torch
from torch import nn

from lightning_mp.amp.gradient_raise import widened
from lightning_mp.amp.own_hook import OwnHook
from lightning_mp.amp.tree import cast_floating, map_tensors

__all__ = ["PlainCasts"]


class PlainCasts:
    """Cast around a model's forward.

    Args:
        module: The model.
        output_dtype: Dtype of its floating outputs; ``None`` leaves them.
        raises_inputs: Whether half inputs become FP32, as weights of that dtype need them.
    """

    def __init__(
        self, module: nn.Module, output_dtype: torch.dtype | None, *, raises_inputs: bool = False
    ) -> None:
        self._output_dtype = output_dtype
        self._handles = []
        if raises_inputs:
            hook = OwnHook(module, self._before_forward, is_compilable=True)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if output_dtype is not None:
            hook = OwnHook(module, self._after_forward, is_compilable=True)
            self._handles.append(module.register_forward_hook(hook))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return map_tensors(widened, args), map_tensors(widened, kwargs)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        assert self._output_dtype is not None
        return cast_floating(output, self._output_dtype)

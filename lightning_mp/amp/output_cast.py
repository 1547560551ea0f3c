"""Outputs of a model in a dtype of the user's choice, where nothing else is cast."""

from typing import Any

import torch
from torch import nn

from lightning_mp.amp.own_hook import OwnHook
from lightning_mp.amp.tree import cast_floating

__all__ = ["OutputCast"]


class OutputCast:
    """Cast the floating outputs of a model's forward.

    Args:
        module: The model.
        dtype: Dtype of its outputs.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        hook = OwnHook(module, self._after_forward, is_compilable=True)
        self._handle = module.register_forward_hook(hook)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        return cast_floating(output, self._dtype)

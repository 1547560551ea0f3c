"""FP32 outputs of a model whose forward runs in casts that somebody else has entered."""

from typing import Any

from torch import nn

from lightning_mp.amp.gradient_raise import widened
from lightning_mp.amp.own_hook import OwnHook
from lightning_mp.amp.tree import map_tensors

__all__ = ["RaisedOutputs"]


class RaisedOutputs:
    """Raise the half outputs of a model's forward to FP32.

    Args:
        module: The model.

    Example:
        >>> import torch
        >>> model = nn.Linear(7, 3).bfloat16()
        >>> outputs = RaisedOutputs(model)
        >>> model(torch.ones(5, 7, dtype=torch.bfloat16)).dtype
        torch.float32
        >>> outputs.remove()
    """

    def __init__(self, module: nn.Module) -> None:
        hook = OwnHook(module, self._after_forward, is_compilable=True)
        self._handle = module.register_forward_hook(hook)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        return map_tensors(widened, output)

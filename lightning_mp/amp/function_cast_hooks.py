"""Hooks on a model that was handed in at O1: its forward casts, and its outputs are FP32.

The scope of the casts is the outermost forward of the model, so that code around it (another
model, a criterion, an optimizer) is as it was.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightning_mp.amp.cast_mark import casts_are_off
from lightning_mp.amp.function_casts import FunctionCasts, casts_are_active
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.amp.own_hook import OwnHook, function_of
from lightning_mp.amp.tree import map_tensors

__all__ = ["FunctionCastHooks"]

_CASTABLE = HALF_DTYPES | {torch.float32}


class FunctionCastHooks:
    """Run the outermost forward of a model with casts and return its outputs in one dtype.

    A forward within casts that are on already, or within ``disable_casts``, is left as it is. So
    is a borrowed call, whose ``forward`` is for the moment another method of the model.

    Args:
        module: The model.
        casts: The casts that its forward runs in.
        output_dtype: Dtype of its float32 and half outputs; None leaves them as they are.
        is_scope: Whether the forward enters the casts. If not, only the outputs are cast: somebody
            else keeps the casts on.
        before_scope: Called with the model before its forward enters the casts; it may replace
            ``casts``.

    Attributes:
        casts: The casts that the next forward runs in.

    Example:
        >>> model = nn.Linear(7, 3)
        >>> hooks = FunctionCastHooks(model, FunctionCasts(torch.bfloat16))
        >>> output = model(torch.ones(5, 7))
        >>> output.dtype, bool((output == output.bfloat16()).all())
        (torch.float32, True)
        >>> hooks.remove()
    """

    def __init__(
        self,
        module: nn.Module,
        casts: FunctionCasts,
        *,
        output_dtype: torch.dtype | None = torch.float32,
        is_scope: bool = True,
        before_scope: Callable[[nn.Module], None] | None = None,
    ) -> None:
        self.casts = casts
        self._before_scope = before_scope
        self._output_dtype = output_dtype
        self._is_scope = is_scope
        self._forward = function_of(module.forward)
        self._local = threading.local()
        # Forwards in progress in all threads: compiled code is guarded by it.
        self._num_open = 0
        self._lock = threading.Lock()
        before = OwnHook(module, self._before_forward, is_compilable=True)
        after = OwnHook(module, self._after_forward, is_compilable=True)
        self._handles = [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # torch calls no hook after an interrupt (KeyboardInterrupt) in forward.
        while self._regions:
            self._leave()

    @property
    def _regions(self) -> list[AbstractContextManager[None] | None]:
        """One entry per forward in progress in this thread; None if it is left as it is."""
        return self._local.__dict__.setdefault("regions", [])

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        # Compiled code within casts is traced without a break: nothing is to be done there.
        if not (torch.compiler.is_compiling() and self._is_scope and casts_are_active()):
            _outside_graph(self._enter, module)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        # Nothing is open if a pre-hook that ran before ours has raised.
        return _outside_graph(self._finish, output) if self._num_open else None

    def _enter(self, module: nn.Module) -> None:
        region: AbstractContextManager[None] | None = None
        if not self._is_left_alone(module):
            if self._before_scope is not None:
                self._before_scope(module)
            region = self.casts.context() if self._is_scope else nullcontext()
            region.__enter__()
        self._regions.append(region)
        with self._lock:
            self._num_open += 1

    def _finish(self, output: Any) -> Any:
        return map_tensors(self._to_output, output) if self._leave() else None

    def _leave(self) -> bool:
        """End the last forward in progress and tell whether its outputs are to be cast."""
        if not self._regions:
            return False
        region = self._regions.pop()
        with self._lock:
            self._num_open -= 1
        if region is not None:
            region.__exit__(None, None, None)
        return region is not None and self._output_dtype is not None

    def _is_left_alone(self, module: nn.Module) -> bool:
        if function_of(module.forward) != self._forward:
            return True
        if not self._is_scope:
            return bool(self._regions)
        return casts_are_active() or casts_are_off()

    def _to_output(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._output_dtype) if tensor.dtype in _CASTABLE else tensor


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


# Breaks the graph of a compiler: casts are entered and left between two graphs.
_outside_graph: Callable[..., Any] = torch.compiler.disable(_call)

"""Hooks on a converted model: FP32 state dicts, and casts around its own forward.

A state dict holds the masters, so a checkpoint made at O2 is an ordinary FP32 checkpoint, and one
loaded goes into the masters without rounding. Inputs of the model's ``forward`` become half and its
outputs FP32, as Apex did; code that calls a submodule directly stays half.
"""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lightning_mp.amp.forward_mode import HalfForwardMode
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.tree import cast_floating

__all__ = ["ModuleHooks"]


class ModuleHooks:
    """Install the hooks on one model.

    Args:
        module: The converted model.
        masters: Its masters.
        half_dtype: Dtype of the half weights.
    """

    def __init__(
        self, module: nn.Module, masters: MasterWeights, half_dtype: torch.dtype
    ) -> None:
        self._masters = masters
        self._half_dtype = half_dtype
        self._contexts: list[ExitStack] = []
        self._handles = [
            module.register_state_dict_post_hook(_Hook(module, self._after_state_dict)),
            module.register_load_state_dict_pre_hook(_Hook(module, self._before_loading)),
            module.register_forward_pre_hook(_Hook(module, self._before_forward), with_kwargs=True),
            module.register_forward_hook(_Hook(module, self._after_forward), always_call=True),
        ]
        for part in module.modules():
            if isinstance(part, nn.RNNBase):
                # They check the dtypes before a function mode could step in.
                hook = _Hook(part, self._before_recurrence)
                self._handles.append(part.register_forward_pre_hook(hook))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _after_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        values = {id(half): value for half, value in self._masters.full_precision_values()}
        for name, tensor in _named_tensors(module):
            if id(tensor) in values and prefix + name in state_dict:
                state_dict[prefix + name] = values[id(tensor)]

    def _before_loading(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        values = {id(half): value for half, value in self._masters.full_precision_values()}
        for name, tensor in _named_tensors(module):
            value, master = state_dict.get(prefix + name), values.get(id(tensor))
            # torch itself refuses a tensor of another shape, after this hook.
            if isinstance(value, Tensor) and master is not None and value.shape == master.shape:
                with torch.no_grad():
                    master.copy_(value)

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        context = ExitStack()
        self._contexts.append(context)
        if _is_redirected(module):
            return None
        context.enter_context(HalfForwardMode(self._half_dtype))
        return cast_floating(args, self._half_dtype), cast_floating(kwargs, self._half_dtype)

    def _before_recurrence(self, module: nn.Module, args: Any) -> Any:
        return cast_floating(args, self._half_dtype)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        self._contexts.pop().close()
        return None if _is_redirected(module) else cast_floating(output, torch.float32)


class _Hook:
    """A bound hook that means one module: a copy of the module carries an inert hook."""

    def __init__(self, module: nn.Module | None, function: Callable[..., Any] | None) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._function = function

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        if self._function is None or self._module is None or self._module() is not module:
            return None
        return self._function(module, *args)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[None, None]]:
        return (_Hook, (None, None))


def _named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _is_redirected(module: nn.Module) -> bool:
    # Wrappers borrow the call of a module for another of its methods (a Trainer's strategy runs
    # training_step this way); what passes then is a batch or a loss, not the model's own data.
    return "forward" in module.__dict__

"""Hooks on a converted model: FP32 state dicts, and casts around its own forward.

A state dict holds the masters, so a checkpoint made at O2 is an ordinary FP32 checkpoint, and one
loaded goes into the masters without rounding. Inputs of the model's ``forward`` become half and its
outputs FP32, as Apex did; code that calls a submodule directly stays half.
"""

import threading
from typing import Any

import torch
from torch import Tensor, nn

from lightning_mp.amp.copied_casts import CopiedCasts
from lightning_mp.amp.forward_mode import HalfForwardMode
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.own_hook import OwnHook, function_of
from lightning_mp.amp.tree import cast_floating

__all__ = ["ModuleHooks"]


class ModuleHooks:
    """Install the hooks on one model.

    State dicts are hooked at every module that owns a cast tensor, so that a part of the model
    saves and loads FP32 too, and after the part's own hooks have renamed what they rename.

    Args:
        module: The converted model.
        masters: Its masters.
        half_dtype: Dtype of the half weights.
        output_dtype: Dtype that the floating outputs of the model's own forward become.
    """

    def __init__(
        self,
        module: nn.Module,
        masters: MasterWeights,
        half_dtype: torch.dtype,
        *,
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._masters = masters
        self._half_dtype = half_dtype
        self._output_dtype = output_dtype
        self._forward = function_of(module.forward)
        self._local = threading.local()
        copied = CopiedCasts(half_dtype, output_dtype)
        before = OwnHook(module, self._before_forward, for_copies=copied.before_forward)
        after = OwnHook(module, self._after_forward, for_copies=copied.after_forward)
        self._handles = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, always_call=True),
        ]
        for part in module.modules():
            if isinstance(part, nn.RNNBase):
                # They check the dtypes before a function mode could step in.
                hook = OwnHook(part, self._before_recurrence, for_copies=copied.before_recurrence)
                self._handles.append(part.register_forward_pre_hook(hook))
        for part in dict.fromkeys([module, *masters.owners_in(module)]):
            self._handles += [
                part.register_state_dict_post_hook(OwnHook(part, self._after_state_dict)),
                part.register_load_state_dict_pre_hook(OwnHook(part, self._before_loading)),
            ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # torch calls no hook after an interrupt (KeyboardInterrupt) in forward.
        while self._modes:
            self._leave_forward()

    @property
    def _modes(self) -> list[HalfForwardMode | None]:
        """One entry per forward in progress in this thread, None for a borrowed call."""
        return self._local.__dict__.setdefault("modes", [])

    def _after_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        for name, value in self._masters.values_of(module):
            if prefix + name in state_dict:
                state_dict[prefix + name] = value
            else:
                _replace_renamed(state_dict, prefix, getattr(module, name), value)

    def _before_loading(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any, *_: Any
    ) -> None:
        if metadata.get("assign_to_params_buffers", False):
            raise ValueError(
                "load_state_dict(assign=True) replaces the parameters that an opt level has cast; "
                "assign=False is allowed now. Load before the model is converted, or leave assign "
                "out."
            )
        for name, value in self._masters.values_of(module):
            incoming = state_dict.get(prefix + name)
            # torch itself refuses a tensor of another shape, after this hook.
            if isinstance(incoming, Tensor) and incoming.shape == value.shape:
                half = self._masters.write(module, name, incoming)
                if self._masters.is_split:
                    # Copied by torch next; it would round another way.
                    state_dict[prefix + name] = half.detach().clone()

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        # Wrappers borrow the call of a module for another of its methods (a Trainer's strategy runs
        # training_step this way); what passes then is a batch or a loss, not the model's own data.
        if function_of(module.forward) != self._forward:
            self._modes.append(None)
            return None
        mode = HalfForwardMode(self._half_dtype)
        mode.__enter__()
        self._modes.append(mode)
        return cast_floating(args, self._half_dtype), cast_floating(kwargs, self._half_dtype)

    def _before_recurrence(self, module: nn.Module, args: Any) -> Any:
        return cast_floating(args, self._half_dtype)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        # Empty if a pre-hook that ran before ours has raised.
        is_own = bool(self._modes) and self._leave_forward()
        return cast_floating(output, self._output_dtype) if is_own else None

    def _leave_forward(self) -> bool:
        mode = self._modes.pop()
        if mode is not None:
            mode.__exit__(None, None, None)
        return mode is not None


def _replace_renamed(state_dict: dict[str, Any], prefix: str, half: Tensor, value: Tensor) -> None:
    # A hook of the module's own, which ran first, may have given its tensor another name.
    for name, item in state_dict.items():
        is_half = isinstance(item, Tensor) and item.dtype == half.dtype and item.numel() > 0
        if name.startswith(prefix) and is_half and item.data_ptr() == half.data_ptr():
            state_dict[name] = value.view_as(item)

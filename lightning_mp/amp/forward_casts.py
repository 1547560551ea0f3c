"""What an opt level does around the forwards of its models."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from lightning_mp.amp.forward_mode import HalfForwardMode
from lightning_mp.amp.function_cast_hooks import FunctionCastHooks
from lightning_mp.amp.function_casts import (
    FunctionCasts,
    Implementation,
    default_device_type,
)
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.module_hooks import ModuleHooks
from lightning_mp.amp.opt_levels import OptLevelProperties
from lightning_mp.amp.plain_casts import PlainCasts

__all__ = ["ForwardCasts"]


class ForwardCasts:
    """Hook models so that their forwards run as the level says.

    Args:
        properties: Resolved properties of the level.
        output_dtype: Dtype of the models' floating outputs; ``None`` for FP32 where the model or
            its functions are cast, and for no change where they are not.
        allow_banned: Whether banned functions run in FP32 at O1 instead of being refused.
        raises_inputs: Whether half inputs of a model that is not cast become FP32.
        implementation: Implementation of O1's casts.

    Attributes:
        functions: The casts of O1; ``None`` at other levels and before a model is there.
    """

    def __init__(
        self,
        properties: OptLevelProperties,
        *,
        output_dtype: torch.dtype | None,
        allow_banned: bool,
        raises_inputs: bool,
        implementation: Implementation,
    ) -> None:
        self.functions: FunctionCasts | None = None
        self._properties = properties
        self._output_dtype = output_dtype
        self._allow_banned = allow_banned
        self._raises_inputs = raises_inputs
        self._implementation: Implementation = implementation
        self._models: list[nn.Module] = []
        self._hooks: list[ModuleHooks | PlainCasts] = []
        self._function_hooks: list[FunctionCastHooks] = []

    def add(self, modules: Sequence[nn.Module], masters: MasterWeights) -> None:
        """Hook more models.

        Args:
            modules: The models.
            masters: Masters of all models.
        """
        self._models += modules
        half_dtype, output_dtype = self._properties.half_dtype, self._output_dtype
        if self._properties.function_dtype is not None:
            self.follow_devices()
        elif half_dtype is not None:
            self._hooks += [
                ModuleHooks(module, masters, half_dtype, output_dtype=output_dtype or torch.float32)
                for module in modules
            ]
        elif output_dtype is not None or self._raises_inputs:
            self._hooks += [
                PlainCasts(module, output_dtype, raises_inputs=self._raises_inputs)
                for module in modules
            ]

    def follow_devices(self) -> None:
        """Choose the implementation of O1's casts by where the models are now."""
        half_dtype = self._properties.function_dtype
        if half_dtype is None:
            return
        device_types = self._device_types()
        if self.functions is None or self.functions.device_types != device_types:
            self.functions = FunctionCasts(
                half_dtype,
                allow_banned=self._allow_banned,
                implementation=self._implementation,
                device_types=device_types,
            )
            for hooks in self._function_hooks:
                hooks.casts = self.functions
        self._function_hooks += [
            FunctionCastHooks(
                model,
                self.functions,
                output_dtype=self._output_dtype or torch.float32,
                before_scope=self._follow,
            )
            for model in self._models[len(self._function_hooks) :]
        ]

    def _follow(self, model: nn.Module) -> None:
        """Follow a model that was moved since: kernels cast on one type of device only."""
        first = next(model.parameters(), None)
        if first is None or self.functions is None:
            return
        if first.device.type not in self.functions.device_types:
            self.follow_devices()

    def _device_types(self) -> tuple[str, ...]:
        """Return where the models are: by their parameters, else buffers, else by default."""
        for tensors_of in (nn.Module.parameters, nn.Module.buffers):
            tensors = (item for model in self._models for item in tensors_of(model))
            if found := {item.device.type for item in tensors}:
                return tuple(sorted(found))
        return (default_device_type(),)

    def context(self) -> AbstractContextManager[object]:
        """Return the context that forward, loss and backward run in."""
        if self.functions is not None:
            return self.functions.context()
        dtype = self._properties.half_dtype
        return nullcontext() if dtype is None else HalfForwardMode(dtype)

    def remove(self) -> None:
        """Leave the models as they were before."""
        for hooks in [*self._hooks, *self._function_hooks]:
            hooks.remove()
        self._hooks, self._function_hooks = [], []
        self._models, self.functions = [], None

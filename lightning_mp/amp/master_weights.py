"""FP32 master weights behind a model's half parameters.

The masters are taken from the FP32 model before it is cast, so no bit of a restored checkpoint is
lost, and are the truth from then on: an optimizer updates them, their half copies are what the model
computes with, and a state dict holds their values.

Somebody else may write to the model between steps: weight averaging, a reload, a re-initialisation.
Such writes are found by value (a version counter misses writes through ``.data``): where the half of
a master no longer equals the weight, the weight was written and is adopted, element by element, so
that untouched elements keep their low bits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_mp.amp.model_cast import castable_buffers, castable_parameters, kept_module_types
from lightning_mp.amp.opt_levels import OptLevelProperties

__all__ = ["MasterWeights"]


@dataclass
class _CastBuffer:
    owner: nn.Module
    name: str
    master: Tensor

    @property
    def half(self) -> Tensor | None:
        return self.owner._buffers.get(self.name)


class MasterWeights:
    """Cast a model in place and keep the FP32 values of what was cast.

    Args:
        module: An FP32 model that passed :func:`~lightning_mp.amp.model_cast.check_castable`.
        properties: Resolved properties of the opt level. Without a half dtype nothing is cast and
            the object is empty.
    """

    def __init__(self, module: nn.Module, properties: OptLevelProperties) -> None:
        self._masters: dict[Tensor, Tensor] = {}
        self._owners: dict[Tensor, Tensor] = {}
        self._buffers: list[_CastBuffer] = []
        self._half_parameters: list[nn.Parameter] = []
        dtype = properties.half_dtype
        if dtype is None:
            return
        kept = kept_module_types(properties)
        for _, parameter in list(castable_parameters(module, kept)):
            self._cast_parameter(parameter, dtype)
        for owner, name, buffer in list(castable_buffers(module, kept)):
            self._buffers.append(_CastBuffer(owner, name, buffer))
            owner._buffers[name] = buffer.to(dtype)

    @property
    def half_parameters(self) -> list[nn.Parameter]:
        """The parameters that were cast, in the model's order."""
        return self._half_parameters

    @property
    def has_masters(self) -> bool:
        """Whether any parameter has an FP32 master."""
        return bool(self._masters)

    def of(self, parameter: Tensor) -> Tensor:
        """Return the FP32 master of a parameter, or the parameter itself if it has none."""
        return self._masters.get(parameter, parameter)

    def owner_of(self, master: Tensor) -> Tensor:
        """Return the model parameter of a master, or the tensor itself if it is no master."""
        return self._owners.get(master, master)

    def drop(self) -> None:
        """Forget the masters: the half weights are the truth from now on (O3)."""
        self._masters.clear()
        self._owners.clear()

    def follow_devices(self) -> None:
        """Move each master to where its parameter or buffer has gone since."""
        for parameter, master in self._masters.items():
            if master.device != parameter.device:
                master.data = master.data.to(parameter.device)
        for cast in self._buffers:
            if cast.half is not None:
                cast.master = cast.master.to(cast.half.device)

    @torch.no_grad()
    def adopt(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Take over values that somebody wrote to the half weights.

        Args:
            parameters: Model parameters to look at; all by default.
        """
        for parameter in self._masters if parameters is None else parameters:
            master = self._masters.get(parameter)
            if master is not None:
                _adopt_written(master, parameter)
        if parameters is None:
            for cast in self._buffers:
                if cast.half is not None:
                    _adopt_written(cast.master, cast.half)

    @torch.no_grad()
    def push(self, parameters: Iterable[Tensor]) -> None:
        """Write the masters, rounded, to the half weights.

        Args:
            parameters: Model parameters to write to; those without a master are left alone.
        """
        pairs = [(item, self._masters[item]) for item in parameters if item in self._masters]
        if pairs:
            torch._foreach_copy_([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def full_precision_values(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each half parameter and buffer with its FP32 value, outside writes included."""
        self.adopt()
        for parameter in self._half_parameters:
            yield parameter, self._masters.get(parameter, parameter).detach().float()
        for cast in self._buffers:
            if cast.half is not None:
                yield cast.half, cast.master

    def restore(self) -> None:
        """Give the FP32 values back to the model and forget everything."""
        self.adopt()
        for parameter in self._half_parameters:
            value = self._masters.get(parameter, parameter)
            parameter.grad = None
            parameter.data = value.detach().to(parameter.device, torch.float32)
            parameter.grad_dtype = torch.float32
        for cast in self._buffers:
            if cast.half is not None:
                cast.owner._buffers[cast.name] = cast.master.to(cast.half.device)
        self.drop()
        self._buffers.clear()
        self._half_parameters.clear()

    def _cast_parameter(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        master = parameter.detach().clone()
        master.requires_grad_(parameter.requires_grad)
        self._masters[parameter] = master
        self._owners[master] = parameter
        self._half_parameters.append(parameter)
        parameter.grad = None
        parameter.data = parameter.data.to(dtype)
        # Lets .grad be half (as autograd makes it) or FP32 (accumulated, or unscaled for a reader).
        parameter.grad_dtype = None


def _adopt_written(master: Tensor, half: Tensor) -> None:
    rounded = master.detach().to(half.dtype)
    # Comparing on the host would make an accelerator wait; there the selection always runs.
    if half.device.type == "cpu" and torch.equal(rounded, half):
        return
    master.copy_(torch.where(rounded != half, half, master))

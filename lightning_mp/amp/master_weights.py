"""FP32 master weights behind a model's half parameters.

The masters are taken from the FP32 model before it is cast, so no bit of a restored checkpoint is
lost, and are the truth from then on: an optimizer updates them, their half copies are what the
model computes with, and a state dict holds their values.

Somebody else may write to the model between steps: weight averaging, a reload, a re-initialisation.
Such writes are found by value (a version counter misses writes through ``.data``): where the half
of a master no longer equals the weight, the weight was written and is adopted, element by element,
so that untouched elements keep their low bits.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightning_mp.amp.model_cast import castable_buffers, castable_parameters, kept_module_types
from lightning_mp.amp.opt_levels import OptLevelProperties

__all__ = ["MasterWeights"]


class MasterWeights:
    """Cast models in place and keep the FP32 values of what was cast.

    Args:
        module: An FP32 model that passed :func:`~lightning_mp.amp.model_cast.check_castable`.
        properties: Resolved properties of the opt level. Without a half dtype nothing is cast and
            the object is empty.
    """

    def __init__(self, module: nn.Module, properties: OptLevelProperties) -> None:
        self._masters: dict[Tensor, Tensor] = {}
        self._parameters: dict[Tensor, Tensor] = {}
        self._half_parameters: dict[Tensor, None] = {}
        self._buffers: dict[tuple[nn.Module, str], Tensor] = {}
        self._owners: list[nn.Module] = []
        self._dtype = properties.half_dtype
        self._kept = kept_module_types(properties)
        self.add(module)

    def add(self, module: nn.Module) -> None:
        """Cast one more model; what it shares with earlier ones is shared still.

        Args:
            module: A model that passed :func:`~lightning_mp.amp.model_cast.check_castable`.
        """
        if self._dtype is None:
            return
        for _, parameter in list(castable_parameters(module, self._kept)):
            self._cast_parameter(parameter, self._dtype)
        self._cast_buffers(list(castable_buffers(module, self._kept)), self._dtype)
        owners = (part for part in module.modules() if any(self._names_of(part)))
        self._owners = list(dict.fromkeys([*self._owners, *owners]))

    def owners_in(self, module: nn.Module) -> list[nn.Module]:
        """Return the parts of a model that have a cast parameter or buffer of their own.

        Args:
            module: One of the models that were cast.
        """
        parts = set(module.modules())
        return [owner for owner in self._owners if owner in parts]

    @property
    def half_parameters(self) -> list[Tensor]:
        """The parameters that were cast, in the model's order."""
        return list(self._half_parameters)

    @property
    def owners(self) -> list[nn.Module]:
        """The modules that have a cast parameter or buffer of their own, in the models' order."""
        return self._owners

    @property
    def has_masters(self) -> bool:
        """Whether any parameter has an FP32 master."""
        return bool(self._masters)

    @property
    def is_split(self) -> bool:
        """Whether the half weights are the upper halves of the masters."""
        return False

    def of(self, parameter: Tensor) -> Tensor:
        """Return the FP32 master of a parameter, or the parameter itself if it has none."""
        return self._masters.get(parameter, parameter)

    def owner_of(self, master: Tensor) -> Tensor:
        """Return the model parameter of a master, or the tensor itself if it is no master."""
        return self._parameters.get(master, master)

    def drop(self) -> None:
        """Forget the masters: the half weights are the truth from now on (O3)."""
        self._masters.clear()
        self._parameters.clear()

    def follow_devices(self) -> None:
        """Move each master to where its parameter or buffer has gone since."""
        for parameter, master in self._masters.items():
            self._follow_device(parameter, master)
        for (owner, name), master in self._buffers.items():
            buffer = owner._buffers.get(name)
            if buffer is not None:
                self._buffers[owner, name] = master.to(buffer.device)

    def stored(self, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what a fused step updates of a parameter.

        Args:
            parameter: A model parameter.

        Returns:
            Its master and the half weight that follows, or the parameter itself and ``None``.
        """
        master = self._masters.get(parameter)
        if master is None:
            return parameter, None
        self._follow_device(parameter, master)
        return master, parameter

    @torch.no_grad()
    def adopt(self, parameters: Iterable[Tensor]) -> None:
        """Take over values that somebody wrote to the half weights.

        Args:
            parameters: Model parameters to look at; those without a master are left alone.
        """
        for parameter in parameters:
            master = self._masters.get(parameter)
            if master is None:
                continue
            self._follow_device(parameter, master)
            _adopt_written(master, parameter)

    def adopt_all(self, parameters: Iterable[Tensor]) -> None:
        """Take over half weights that somebody has written, to the last bit.

        Args:
            parameters: Model parameters that were written; those without a master are left alone.
        """
        self.adopt(parameters)

    @contextmanager
    def opened(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Have masters hold their values for a while, as those that are not split always do.

        Args:
            parameters: Model parameters; those without a master are left alone.
        """
        parameters = list(parameters)
        self.open(parameters)
        try:
            yield
        finally:
            self.close(parameters)

    def open(self, parameters: Iterable[Tensor]) -> None:
        """Have masters hold their values until :meth:`close` was called as often as this.

        Args:
            parameters: Model parameters; those without a master are left alone.
        """

    def close(self, parameters: Iterable[Tensor]) -> None:
        """End :meth:`open`; what masters are to keep was pushed before.

        Args:
            parameters: The parameters that were opened.
        """

    @torch.no_grad()
    def push(self, parameters: Iterable[Tensor]) -> None:
        """Write the masters, rounded, to the half weights.

        Args:
            parameters: Model parameters to write to; those without a master are left alone.
        """
        pairs = [(item, self._masters[item]) for item in parameters if item in self._masters]
        if pairs:
            torch._foreach_copy_([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def values_of(self, owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield the FP32 value of what a module has as its own and was cast.

        Writes from outside are taken over first.

        Args:
            owner: A part of the model.

        Yields:
            Name within the module, and value; what is written to it counts after :meth:`write`.
        """
        for name in self._names_of(owner):
            parameter = owner._parameters.get(name)
            if parameter is not None:
                yield name, self.value_of(parameter)
            else:
                yield name, self._buffer_value(owner, name)

    def value_of(self, parameter: Tensor) -> Tensor:
        """Return the value of a parameter; writes from outside are taken over first.

        Args:
            parameter: A model parameter.

        Returns:
            The master itself, or a copy where no tensor holds the value; FP32 for one that was
            cast.
        """
        self.adopt([parameter])
        value = self.of(parameter).detach()
        return value.float() if value.dtype == self._dtype else value

    @torch.no_grad()
    def write(self, owner: nn.Module, name: str, value: Tensor) -> Tensor:
        """Give something that a module has as its own and that was cast another FP32 value.

        Args:
            owner: A part of the model.
            name: Name within it.
            value: The value, of the same shape.

        Returns:
            The half tensor, which follows.
        """
        parameter = owner._parameters.get(name)
        if parameter is not None:
            self._write_parameter(parameter, value)
            return parameter
        buffer = owner._buffers[name]
        assert buffer is not None
        self._buffers[owner, name].copy_(value)
        return buffer.copy_(value)

    def num_bytes(self, parameter: Tensor) -> int:
        """Return the memory that a parameter takes beside its own.

        Args:
            parameter: A model parameter.
        """
        master = self._masters.get(parameter)
        return 0 if master is None else master.numel() * master.element_size()

    def restore(self) -> None:
        """Give the FP32 values back to the model and forget everything."""
        self.adopt(self._half_parameters)
        for parameter in self._half_parameters:
            value = self.value_of(parameter)
            parameter.grad = None
            parameter.data = value
            # grad_dtype stays None: torch cannot forget it, and a fixed dtype would follow the
            # parameter into a later .half().
        restored: dict[Tensor, Tensor] = {}
        for owner in self._owners:
            for name in list(self._names_of(owner)):
                half = owner._buffers.get(name)
                if half is not None:
                    value = self._buffer_value(owner, name)
                    owner._buffers[name] = restored.setdefault(half, value)
        self.drop()
        self._buffers.clear()
        self._owners.clear()
        self._half_parameters.clear()

    def _follow_device(self, parameter: Tensor, master: Tensor) -> None:
        if master.device != parameter.device:
            master.data = master.data.to(parameter.device)

    def _cast_parameter(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        master = self._make_master(parameter)
        master.requires_grad_(parameter.requires_grad)
        self._masters[parameter] = master
        self._parameters[master] = parameter
        self._half_parameters[parameter] = None
        parameter.grad = None
        parameter.data = parameter.data.to(dtype)
        # Lets .grad be half (as autograd makes it) or FP32 (accumulated, or unscaled for a reader).
        parameter.grad_dtype = None

    def _make_master(self, parameter: nn.Parameter) -> Tensor:
        return parameter.detach().clone()

    def _write_parameter(self, parameter: Tensor, value: Tensor) -> None:
        self.of(parameter).copy_(value)
        parameter.copy_(value)

    def _cast_buffers(
        self, buffers: list[tuple[nn.Module, str, Tensor]], dtype: torch.dtype
    ) -> None:
        halves: dict[Tensor, Tensor] = {}
        for owner, name, buffer in buffers:
            # What several modules share stays shared; each keeps a value of its own behind it, as
            # one of them may replace its buffer.
            self._buffers[owner, name] = buffer.clone() if buffer in halves else buffer
            if buffer not in halves:
                halves[buffer] = buffer.to(dtype)
            owner._buffers[name] = halves[buffer]

    def _names_of(self, owner: nn.Module) -> Iterator[str]:
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter in self._half_parameters:
                yield name
        for name, buffer in owner._buffers.items():
            # A module may put a buffer of another dtype in place of the one that was cast.
            is_cast = buffer is not None and buffer.dtype == self._dtype
            if is_cast and (owner, name) in self._buffers:
                yield name

    @torch.no_grad()
    def _buffer_value(self, owner: nn.Module, name: str) -> Tensor:
        buffer, master = owner._buffers[name], self._buffers[owner, name]
        assert buffer is not None
        if buffer.shape != master.shape:
            master = buffer.float()
        elif buffer.device != master.device:
            master = master.to(buffer.device)
        self._buffers[owner, name] = master
        _adopt_written(master, buffer)
        return master


def _adopt_written(master: Tensor, half: Tensor) -> None:
    rounded = master.detach().to(half.dtype)
    # Comparing on the host would make an accelerator wait; there the selection always runs.
    if half.device.type == "cpu" and _has_same_bits(rounded, half):
        return
    master.copy_(torch.where(rounded != half, half, master))


def _has_same_bits(first: Tensor, second: Tensor) -> bool:
    # torch compares half numbers one at a time; words of four are compared at memory speed.
    tensors = (first.detach(), second.detach())
    if all(
        item.is_contiguous() and item.numel() % 4 == 0 and item.storage_offset() % 4 == 0
        for item in tensors
    ):
        return torch.equal(*(item.view(-1).view(torch.int64) for item in tensors))
    return torch.equal(*(item.view(torch.int16) for item in tensors))

"""FP32 masters kept as bfloat16 weights and 16-bit remainders: exact, in 4 bytes instead of 6.

The weight itself is the upper half of its master, rounded; the remainder is the lower half. A
master tensor is there only for those who ask for it (:meth:`SplitMasterWeights.open`). At other
times it is a stand-in of the right shape, dtype and device that takes no memory and reads NaN:
optimizers need it as a key and as the holder of a gradient.

A value that somebody writes to the weight counts at once, but with the remainder of the old one,
which is less than the weight's last bit. :meth:`SplitMasterWeights.adopt_all` clears it.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.opt_levels import OptLevelProperties
from lightning_mp.kernels.split import join_, split_

__all__ = ["SplitMasterWeights"]


class SplitMasterWeights(MasterWeights):
    """Cast models in place to bfloat16 and keep what the rounding took away.

    Args:
        module: An FP32 model that passed :func:`~lightning_mp.amp.model_cast.check_castable`.
        properties: Resolved properties of the opt level, with bfloat16 as the half dtype.
    """

    def __init__(self, module: nn.Module, properties: OptLevelProperties) -> None:
        self._remainders: dict[Tensor, Tensor] = {}
        self._num_users: dict[Tensor, int] = {}
        super().__init__(module, properties)

    @property
    @override
    def is_split(self) -> bool:
        return True

    @override
    def drop(self) -> None:
        super().drop()
        self._remainders.clear()
        self._num_users.clear()

    @override
    def stored(self, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
        remainder = self._remainders.get(parameter)
        if remainder is None or parameter in self._num_users:
            return super().stored(parameter)
        if remainder.device != parameter.device:
            remainder = self._remainder_of(parameter)
        return remainder, parameter

    @override
    @torch.no_grad()
    def adopt(self, parameters: Iterable[Tensor]) -> None:
        for parameter, master in self._pairs(parameters, is_open=True):
            self._follow_device(parameter, master)
            half = parameter.detach().view(torch.int16)
            is_written = _halves_of(master)[0].view(torch.int16) != half
            master.copy_(torch.where(is_written, parameter.detach(), master.detach()))

    @override
    @torch.no_grad()
    def adopt_all(self, parameters: Iterable[Tensor]) -> None:
        parameters = list(parameters)
        super().adopt_all(parameters)
        for parameter, _ in self._pairs(parameters, is_open=False):
            self._remainder_of(parameter).zero_()

    @override
    @torch.no_grad()
    def push(self, parameters: Iterable[Tensor]) -> None:
        for parameter, master in self._pairs(parameters, is_open=True):
            self._split(parameter, master)

    @override
    @torch.no_grad()
    def open(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            master = self._masters.get(parameter)
            if master is not None:
                if parameter not in self._num_users:
                    master.data = self._join(parameter)
                self._num_users[parameter] = self._num_users.get(parameter, 0) + 1

    @override
    @torch.no_grad()
    def close(self, parameters: Iterable[Tensor]) -> None:
        for parameter, master in list(self._pairs(parameters, is_open=True)):
            self._num_users[parameter] -= 1
            if not self._num_users[parameter]:
                self.adopt([parameter])
                self._split(parameter, master)
                del self._num_users[parameter]
                master.data = _stand_in(parameter)

    @override
    @torch.no_grad()
    def value_of(self, parameter: Tensor) -> Tensor:
        if parameter in self._masters and parameter not in self._num_users:
            return self._join(parameter)
        return super().value_of(parameter)

    @override
    def num_bytes(self, parameter: Tensor) -> int:
        # Those of the remainder.
        return 2 * parameter.numel() if parameter in self._masters else 0

    @override
    def _write_parameter(self, parameter: Tensor, value: Tensor) -> None:
        if parameter in self._num_users:
            self._masters[parameter].copy_(value)
        self._split(parameter, value)

    @override
    def _make_master(self, parameter: nn.Parameter) -> Tensor:
        half, remainder = _halves_of(parameter)
        # The caller rounds once more, which changes nothing in these.
        parameter.data = half
        self._remainders[parameter] = remainder
        return _stand_in(parameter)

    @override
    def _follow_device(self, parameter: Tensor, master: Tensor) -> None:
        if master.device != parameter.device:
            is_open = parameter in self._num_users
            master.data = master.data.to(parameter.device) if is_open else _stand_in(parameter)

    def _pairs(
        self, parameters: Iterable[Tensor], *, is_open: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for parameter in parameters:
            master = self._masters.get(parameter)
            if master is not None and (parameter in self._num_users) is is_open:
                yield parameter, master

    def _remainder_of(self, parameter: Tensor) -> Tensor:
        remainder = self._remainders[parameter]
        if remainder.device != parameter.device:
            remainder = self._remainders[parameter] = remainder.to(parameter.device)
        return remainder

    def _join(self, parameter: Tensor) -> Tensor:
        value = torch.empty_like(parameter, dtype=torch.float32, requires_grad=False)
        join_([parameter.detach()], [self._remainder_of(parameter)], [value])
        return value

    def _split(self, parameter: Tensor, value: Tensor) -> None:
        source = value.detach().to(parameter.device, torch.float32)
        split_([source], [parameter.detach()], [self._remainder_of(parameter)])


def _halves_of(source: Tensor) -> tuple[Tensor, Tensor]:
    half = torch.empty_like(source, dtype=torch.bfloat16, requires_grad=False)
    remainder = torch.empty_like(source, dtype=torch.int16, requires_grad=False)
    split_([source.detach()], [half], [remainder])
    return half, remainder


def _stand_in(parameter: Tensor) -> Tensor:
    nothing = torch.full((), math.nan, dtype=torch.float32, device=parameter.device)
    return nothing.expand(parameter.shape)

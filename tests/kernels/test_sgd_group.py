"""When a step of SGD reads a value on the host."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.kernels.sgd_group import sgd_group_step_
from lightning_mp.kernels.step_rows import StepInputs, StepRow


class HostReads(TorchDispatchMode):
    """Count the values that are read on the host while the mode is on."""

    num_reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_of(state: dict[str, Tensor], found_inf: Tensor | None, **options: Any) -> int:
    group = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False}
    row = StepRow(torch.ones(7), torch.ones(7), None, state)
    with HostReads() as reads:
        sgd_group_step_(
            {**group, "maximize": False, **options}, [row], StepInputs(found_inf=found_inf)
        )
    return reads.num_reads


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.0, "dampening": 0.3}, {"nesterov": True}])
def test_without_dampening_nothing_is_read(found_inf: float, options: Any) -> None:
    state: dict[str, Tensor] = {}
    for _ in range(2):
        assert reads_of(state, torch.tensor(found_inf), **options) == 0


def test_dampening_reads_until_a_first_step_was_not_skipped() -> None:
    state: dict[str, Tensor] = {}
    for found_inf, num_reads in ((1.0, 1), (1.0, 1), (0.0, 1), (0.0, 0), (1.0, 0)):
        assert reads_of(state, torch.tensor(found_inf), dampening=0.3) == num_reads
        assert ("momentum_buffer" in state) is (found_inf == 0.0 or num_reads == 0)


def test_dampening_without_a_flag_reads_nothing() -> None:
    assert reads_of({}, None, dampening=0.3) == 0

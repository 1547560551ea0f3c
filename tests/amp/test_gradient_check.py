"""Pass 1: which gradients are finite, under which names."""

import math

import pytest
import torch
from torch import nn

from lightning_mp.amp.gradient_check import GradientCheck, dense_values


def with_gradient(value: float, *shape: int) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.full(shape, value)
    return parameter


def test_names_and_flags_of_what_overflowed() -> None:
    good, bad, unknown = with_gradient(1.0, 7), with_gradient(math.nan, 3), with_gradient(2.0)
    check = GradientCheck([good, bad, unknown], {good: "good", bad: "bad"})
    assert check.finite_flags.tolist() == [True, False, True]
    assert check.parameter_names == ["good", "bad", "<unnamed>"]
    assert check.found_inf.dtype == torch.float32
    assert check.found_inf.tolist() == 1.0
    assert check.flag.read()
    assert check.flag is check.flag
    assert check.has_gradients


def test_no_gradients_are_no_overflow() -> None:
    check = GradientCheck([], {})
    assert not check.has_gradients
    assert not check.flag.read()
    assert check.finite_flags.shape == (0,)


def test_a_check_keeps_what_it_saw() -> None:
    parameter = with_gradient(1.0, 3)
    check = GradientCheck([parameter], {})
    assert parameter.grad is not None
    parameter.grad.fill_(math.inf)
    assert not check.flag.read()


# Once a process, and under torch 2.11 alone also where checks are asked for.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_gradients_show_their_values() -> None:
    parameter = nn.Parameter(torch.zeros(5, 2))
    indices = torch.tensor([[1, 1]])
    parameter.grad = torch.sparse_coo_tensor(
        indices, torch.ones(2, 2), (5, 2), check_invariants=True
    )
    values = dense_values(parameter)
    assert values.shape == (2, 2)
    values[1, 1] = math.inf
    assert GradientCheck([parameter], {}).flag.read()

"""The plain-torch operations against formulas in double precision and against torch."""

import math
from typing import Any

import pytest
import torch
from support import tolerances
from torch import Tensor

from lightning_mp.kernels.reference.passes import (
    AdamSettings,
    clip_coefficient,
    copy_to_float32,
    finite_flags,
    total_norm,
    update_adam_,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
SHAPES = [(), (1,), (7,), (13, 103), (3, 5, 2, 2)]


def tensors(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("index", range(len(SHAPES)))
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_finite_flags_names_the_tensor(
    dtype: torch.dtype, value: float, index: int, place: float
) -> None:
    gradients = tensors(dtype)
    flat = gradients[index].view(-1)
    flat[int(place * (flat.numel() - 1))] = value
    expected = [position != index for position in range(len(SHAPES))]
    assert finite_flags(gradients).tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_finite_values_are_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert finite_flags([torch.tensor([largest, -largest], dtype=dtype)] * 2).tolist() == [
        True,
        True,
    ]
    wide = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert finite_flags([wide, torch.ones(2)]).tolist() == [True, True]


def test_finite_flags_of_mixed_dtypes_and_empty_tensors() -> None:
    gradients = [torch.ones(3, dtype=dtype) for dtype in DTYPES]
    gradients[2][1] = math.nan
    mixed = [torch.ones(0), *gradients, torch.ones(2, 0)]
    assert finite_flags(mixed).tolist() == [True, True, True, False, True, True, True]
    assert finite_flags([]).shape == (0,)
    assert finite_flags([torch.ones(0)]).tolist() == [True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, math.inf])
def test_total_norm_is_that_of_double_precision(dtype: torch.dtype, norm_type: float) -> None:
    gradients = [*tensors(dtype), torch.ones(0, dtype=dtype)]
    flat = torch.cat([item.reshape(-1).to(torch.complex128).abs() for item in gradients])
    expected = torch.linalg.vector_norm(flat, norm_type).float()
    found = total_norm(gradients, norm_type)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, **tolerances.FORMULA)


def test_total_norm_does_not_overflow_in_half() -> None:
    gradients = [torch.full((103,), 6e4, dtype=torch.float16)] * 2
    expected = torch.tensor(6e4 * math.sqrt(206))
    torch.testing.assert_close(total_norm(gradients), expected, **tolerances.HALF_INPUT)


def test_total_norm_of_mixed_dtypes_and_of_nothing() -> None:
    gradients = [torch.full((4,), 2.0, dtype=dtype) for dtype in DTYPES]
    assert float(total_norm(gradients)) == pytest.approx(2 * math.sqrt(20))
    assert float(total_norm([])) == 0.0
    assert float(total_norm([torch.ones(0)])) == 0.0


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 7.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.1, 1.0])
def test_clip_coefficient_is_torchs(norm: float, max_norm: float) -> None:
    gradient = torch.nn.Parameter(torch.zeros(1))
    gradient.grad = torch.tensor([norm])
    torch.nn.utils.clip_grad_norm_([gradient], max_norm)
    found = torch.tensor([norm]) * clip_coefficient(torch.tensor(norm), max_norm)
    torch.testing.assert_close(found, gradient.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_copies_take_the_masters_layout(dtype: torch.dtype) -> None:
    masters = [torch.randn(7, 5), torch.randn(5, 7).t(), torch.randn(()), torch.randn(0, 3)]
    channels_last = torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    masters.append(channels_last.requires_grad_())
    gradients = [torch.randn(item.shape).to(dtype) for item in masters]
    copies = copy_to_float32(gradients, masters)
    for copy, gradient, master in zip(copies, gradients, masters, strict=True):
        assert copy.stride() == master.stride()
        assert copy.dtype == torch.float32
        assert torch.equal(copy, gradient.float())
        assert not copy.requires_grad
        assert copy.data_ptr() != gradient.data_ptr() or not copy.numel()


def make_states(masters: list[Tensor]) -> list[dict[str, Tensor]]:
    return [
        {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(item),
            "exp_avg_sq": torch.zeros_like(item),
        }
        for item in masters
    ]


def adam_in_double(weight: Tensor, gradients: list[Tensor], settings: AdamSettings) -> Tensor:
    """The update written out from the paper."""
    weight, first, second = weight.double(), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient.double()
        if settings.is_decoupled:
            weight = weight * (1 - float(settings.lr) * settings.weight_decay)
        else:
            gradient = gradient + settings.weight_decay * weight
        first = settings.beta1 * first + (1 - settings.beta1) * gradient
        second = settings.beta2 * second + (1 - settings.beta2) * gradient**2
        corrected = second / (1 - settings.beta2**step)
        rate = float(settings.lr) / (1 - settings.beta1**step)
        weight = weight - rate * first / (corrected**0.5 + settings.eps)
    return weight


@pytest.mark.parametrize("is_decoupled", [True, False])
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)])
def test_adam_follows_the_formula(is_decoupled: bool, lr: Any) -> None:
    torch.manual_seed(0)
    settings = AdamSettings(lr, 0.8, 0.95, 1e-6, 0.1, is_decoupled)
    masters = [torch.randn(7, 13), torch.randn(103)]
    before = [item.clone() for item in masters]
    gradients = [[torch.randn_like(item) for item in masters] for _ in range(5)]
    states = make_states(masters)
    for current in gradients:
        update_adam_(masters, current, states, settings, torch.tensor(0.0))
    for index, master in enumerate(masters):
        history = [current[index] for current in gradients]
        expected = adam_in_double(before[index], history, settings).float()
        torch.testing.assert_close(master, expected, **tolerances.FORMULA)
        torch.testing.assert_close(states[index]["step"], torch.tensor(5.0))


@pytest.mark.parametrize("num_before", [0, 3])
def test_an_overflow_leaves_all_as_it_was(num_before: int) -> None:
    settings = AdamSettings(0.1, 0.9, 0.999, 1e-8, 0.1, is_decoupled=True)
    masters = [torch.randn(7), torch.randn(3, 5), torch.randn(0)]
    states = make_states(masters)
    for _ in range(num_before):
        update_adam_(
            masters, [torch.randn_like(item) for item in masters], states, settings, torch.zeros(())
        )
    old = [item.clone() for item in masters]
    old_states = [{key: value.clone() for key, value in state.items()} for state in states]
    gradients = [torch.full_like(item, math.nan) for item in masters]
    update_adam_(masters, gradients, states, settings, torch.ones(()))
    assert all(map(torch.equal, masters, old))
    for state, old_state in zip(states, old_states, strict=True):
        assert all(torch.equal(state[key], old_state[key]) for key in state)

"""The plain-torch operations against formulas in double precision and against torch."""

import math

import pytest
import torch
from support import tolerances
from torch import Tensor

from lightning_mp.kernels.reference.passes import (
    clip_coefficient,
    copy_to_float32,
    finite_flags,
    total_norm,
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

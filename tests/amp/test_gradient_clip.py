"""Clipping on lists of gradients equals torch's, and wrong limits are refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_mp.amp.gradient_clip import ClipRule, clip_gradients_, scale_gradients_


def make_gradients(scale: float = 1.0) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(7, 13) * scale, torch.randn(103) * scale, torch.randn(0)]


def parameters_of(gradients: list[Tensor]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(item)) for item in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_norm_clipping_is_torchs(norm_type: float, scale: float) -> None:
    gradients = make_gradients(scale)
    parameters = parameters_of(gradients[:-1])  # torch has no infinity norm of empty tensors
    expected = torch.nn.utils.clip_grad_norm_(parameters, 0.7, norm_type)
    found = clip_gradients_(gradients, ClipRule(max_norm=0.7, norm_type=norm_type))
    assert found is not None
    torch.testing.assert_close(found, expected)
    for gradient, parameter in zip(gradients[:-1], parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_value_clipping_is_torchs() -> None:
    gradients = make_gradients()
    gradients[0][0, 0], gradients[0][0, 1] = math.nan, math.inf
    parameters = parameters_of(gradients)
    torch.nn.utils.clip_grad_value_(parameters, 0.3)
    assert clip_gradients_(gradients, ClipRule(clip_value=0.3)) is None
    for gradient, parameter in zip(gradients, parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("rule", "norm"), [({"max_norm": 1.0}, 0.0), ({"clip_value": 1.0}, None)])
def test_nothing_to_clip(rule: dict[str, Any], norm: float | None) -> None:
    found = clip_gradients_([], ClipRule(**rule))
    assert (None if found is None else float(found)) == norm


def test_scaling_keeps_each_dtype() -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    gradients = [torch.full((3,), 4.0, dtype=dtype) for dtype in dtypes]
    scale_gradients_(gradients, torch.tensor(0.25))
    assert [item.dtype for item in gradients] == dtypes
    assert all(bool((item == 1).all()) for item in gradients)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of the two"),
        ({"max_norm": 1.0, "clip_value": 1.0}, "exactly one of the two"),
        ({"max_norm": 0.0}, "max_norm = 0.0; it must be a number above 0"),
        ({"max_norm": math.nan}, "max_norm = nan"),
        ({"clip_value": -1.0}, "clip_value = -1.0"),
        ({"max_norm": 1.0, "norm_type": 0.0}, "norm_type = 0.0"),
    ],
)
def test_wrong_limits_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipRule(**arguments)

"""Norm, factor and check of gradients: both implementations against double precision."""

import math

import pytest
import torch
from support import tolerances
from support.kernels import (
    FLOATING,
    SHAPES,
    both_implementations,
    clone_lists,
    operation,
    random_tensors,
    same_bits,
)
from torch import Tensor

from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.reference.passes import clip_coefficient


def stats(
    gradients: list[Tensor],
    implementation: str = "active",
    inv_scale: Tensor | None = None,
    max_norm: float | None = None,
) -> tuple[float, float, float]:
    norm, factor, found_inf = torch.full((3,), 0.0).unbind()
    run = operation("gradient_stats_", implementation)
    run(gradients, inv_scale, max_norm, norm, factor, found_inf)
    return norm.item(), factor.item(), found_inf.item()


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("scale", [1.0, 1024.0, 0.37])
def test_norm_and_factor_are_those_of_unscaled_gradients(
    implementation: str, dtype: torch.dtype, scale: float
):
    gradients = random_tensors(dtype, factor=scale)
    flat = torch.cat([item.reshape(-1).double() for item in gradients])
    inv_scale = torch.tensor([1 / scale])
    expected = flat.norm().item() * inv_scale.item()
    before = clone_lists([gradients])
    norm, factor, found_inf = stats(gradients, implementation, inv_scale, 3.0)
    assert norm == pytest.approx(expected, rel=tolerances.ROUNDOFF[torch.float32] * 2)
    wanted = inv_scale * clip_coefficient(torch.tensor(norm), 3.0)
    assert factor == wanted.item()
    assert found_inf == 0.0
    assert same_bits(gradients, before[0])
    assert stats(gradients, implementation, inv_scale)[1] == inv_scale.item()
    assert stats(gradients, implementation, None, 1e9)[1] == 1.0


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_found_wherever_it_is(
    implementation: str, dtype: torch.dtype, value: float
):
    gradients = random_tensors(dtype)
    for gradient in gradients:
        flat = gradient.view(-1)
        for place in {0, flat.numel() // 2, flat.numel() - 1} if flat.numel() else ():
            old = flat[place].clone()
            flat[place] = value
            assert stats(gradients, implementation)[2] == 1.0, (gradient.shape, place)
            flat[place] = old
    assert stats(gradients, implementation)[2] == 0.0


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
def test_each_gradient_may_have_a_flag_of_its_own(implementation: str, dtype: torch.dtype):
    gradients = random_tensors(dtype)
    run = operation("gradient_stats_", implementation)
    places = [index for index, item in enumerate(gradients) if item.numel()]
    for bad in ([], places[:1], places[1:4], places[-1:]):
        spoilt = [item.clone() for item in gradients]
        for index in bad:
            spoilt[index].view(-1)[-1] = math.nan
        norm, factor, found_inf = torch.zeros(()), torch.zeros(()), torch.zeros(len(gradients))
        run(spoilt, None, None, norm, factor, found_inf)
        assert found_inf.nonzero().flatten().tolist() == bad
        run(gradients, None, None, norm, factor, found_inf)
        assert found_inf.nonzero().flatten().tolist() == bad


@both_implementations
def test_a_flag_is_never_cleared(implementation: str):
    norm, factor, found_inf = torch.ones(3, 1).unbind()
    run = operation("gradient_stats_", implementation)
    run(random_tensors(), None, None, norm, factor, found_inf)
    assert found_inf.item() == 1.0


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
def test_largest_and_smallest_numbers_count(implementation: str, dtype: torch.dtype):
    info = torch.finfo(dtype)
    for value in (info.max, -info.max, info.tiny, info.smallest_normal / 16, 1e-30):
        gradient = torch.full((103, 47), value, dtype=dtype)
        exact = abs(gradient.double()).max().item() * math.sqrt(103 * 47)
        norm, _, found_inf = stats([gradient], implementation)
        assert found_inf == 0.0
        expected = torch.tensor(exact, dtype=torch.float64).float().item()
        assert norm == pytest.approx(expected, rel=1e-6, abs=1e-44)


@both_implementations
def test_blocks_of_zeros_are_zeros_of_either_sign(implementation: str):
    gradient = torch.zeros(70001)
    gradient[::2] = -0.0
    assert stats([gradient], implementation, None, 1.0) == (0.0, 1.0, 0.0)


@both_implementations
def test_nothing_has_norm_zero(implementation: str):
    for gradients in ([], [torch.zeros(0)], [torch.zeros(2, 0).half(), torch.zeros(0)]):
        inv_scale = torch.tensor(0.5)
        assert stats(gradients, implementation, inv_scale, 1.0) == (0.0, 0.5, 0.0)


@both_implementations
def test_dtypes_and_layouts_may_be_mixed(implementation: str):
    shapes = [shape for shape in SHAPES if len(shape) == 2]
    gradients = [random_tensors(dtype, shapes)[-1].t()[::2] for dtype in FLOATING]
    gradients.append(torch.ones(1).expand(103))
    flat = torch.cat([item.reshape(-1).double() for item in gradients])
    norm, _, found_inf = stats(gradients, implementation)
    assert norm == pytest.approx(flat.norm().item(), rel=1e-6)
    assert found_inf == 0.0
    gradients[2][3, 3] = math.nan
    assert stats(gradients, implementation)[2] == 1.0


def test_neighbours_of_a_view_do_not_count():
    base = torch.full((64,), math.inf)
    view = base[3:50].fill_(2.0)
    norm, factor, found_inf = torch.zeros(3, 1).unbind()
    gradient_stats_([view], norm=norm, factor=factor, found_inf=found_inf)
    assert (norm.item(), found_inf.item()) == (pytest.approx(2 * math.sqrt(47)), 0.0)


@both_implementations
def test_what_does_not_fit_is_refused(implementation: str):
    run = operation("gradient_stats_", implementation)
    good = [torch.ones(3)]
    norm, factor, found_inf = torch.full((3, 1), 7.0).unbind()
    name = "lightning_mp::gradient_stats_: "
    with pytest.raises(
        RuntimeError, match=name + r"gradients\[1\] is float64; float32 or bfloat16"
    ):
        run([*good, torch.ones(3).double()], None, None, norm, factor, found_inf)
    with pytest.raises(
        RuntimeError, match=name + "norm is float32 with 2 elements; float32 with 1"
    ):
        run(good, None, None, torch.zeros(2), factor, found_inf)
    with pytest.raises(RuntimeError, match=name + "inv_scale is float16 with 1 elements"):
        run(good, torch.ones(1).half(), None, norm, factor, found_inf)
    with pytest.raises(RuntimeError, match=name + "found_inf is float32 with 3 elements; float32"):
        run(good, None, None, norm, factor, torch.zeros(3))
    for max_norm in (0.0, -1.0, math.nan):
        with pytest.raises(RuntimeError, match=name + "max_norm = .*; a number above 0 is needed"):
            run(good, None, max_norm, norm, factor, found_inf)
    assert [item.item() for item in (norm, factor, found_inf)] == [7.0] * 3

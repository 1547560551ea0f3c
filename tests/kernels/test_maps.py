"""Scaled copies, sums, norms, splits and the rule of the loss scale, in both implementations."""

import itertools
import math
from typing import Any

import pytest
import torch
from support import tolerances
from support.kernels import (
    FLOATING,
    SHAPES,
    bits,
    both_implementations,
    operation,
    random_tensors,
    same_bits,
)

from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.kernels.split import join_, split_


@both_implementations
@pytest.mark.parametrize("source", FLOATING)
@pytest.mark.parametrize("target", FLOATING)
def test_scale_copy(implementation: str, source: torch.dtype, target: torch.dtype):
    run = operation("scale_copy_", implementation)
    inputs = random_tensors(source)
    outputs = [torch.empty(item.shape, dtype=target) for item in inputs]
    found_inf = torch.zeros(1)
    run(inputs, outputs, torch.tensor(0.37), found_inf)
    assert same_bits(outputs, [(item.float() * 0.37).to(target) for item in inputs])
    assert found_inf.item() == 0.0
    inputs[5].view(-1)[-1] = math.nan
    run(inputs, outputs, torch.tensor(0.37), found_inf)
    assert found_inf.item() == 1.0
    assert outputs[5].isnan().sum() == 1


@both_implementations
@pytest.mark.parametrize("target", FLOATING)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_axpby(implementation: str, target: torch.dtype, value: float):
    run = operation("axpby_", implementation)
    for x_dtype, y_dtype in itertools.product(FLOATING, FLOATING):
        x, y = random_tensors(x_dtype), random_tensors(y_dtype, seed=1)
        outputs = [torch.empty(item.shape, dtype=target) for item in x]
        found_inf = torch.zeros(1)
        run(x, y, outputs, 0.7, -1.3, found_inf)
        expected = [a.double() * 0.7 - b.double() * 1.3 for a, b in zip(x, y, strict=True)]
        roundoff = tolerances.ROUNDOFF[target] * 2
        for output, exact in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output.double(), exact, rtol=roundoff, atol=1e-6)
        assert found_inf.item() == 0.0
        for tensors in (x, y):
            flag = torch.zeros(())
            old = tensors[8].view(-1)[77].clone()
            tensors[8].view(-1)[77] = value
            run(x, y, outputs, 0.7, -1.3, flag)
            tensors[8].view(-1)[77] = old
            assert flag.item() == 1.0


@both_implementations
def test_products_and_sums_that_overflow_are_found_before_they_are_rounded(implementation: str):
    for value, factor, expected in ((3e38, 2.0, 1.0), (70000.0, 1.0, 0.0)):
        for count in (1, 103):
            x, output = torch.full((count,), value), torch.zeros(count, dtype=torch.float16)
            flags = torch.zeros(2, 1)
            scale = torch.tensor(factor)
            operation("scale_copy_", implementation)([x], [output], scale, flags[0])
            operation("axpby_", implementation)([x], [x], [output], factor, 0.5, flags[1])
            assert flags.flatten().tolist() == [expected] * 2
            assert output.isinf().all()


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
def test_each_tensor_may_have_a_flag_of_its_own(implementation: str, dtype: torch.dtype):
    inputs = random_tensors(dtype)
    outputs = [torch.empty_like(item) for item in inputs]
    for index in [index for index, item in enumerate(inputs) if item.numel()]:
        bad = list(inputs)
        bad[index] = bad[index].clone()
        bad[index].view(-1)[-1] = math.inf
        found, of_sums = torch.zeros(2, len(inputs)).unbind()
        operation("scale_copy_", implementation)(bad, outputs, torch.tensor(0.37), found)
        operation("axpby_", implementation)(inputs, bad, outputs, 1.0, 0.5, of_sums)
        for flags in (found, of_sums):
            assert flags.nonzero().tolist() == [[index]]
    nothing = torch.zeros(0)
    operation("scale_copy_", implementation)([], [], torch.tensor(1.0), nothing)


@both_implementations
def test_outputs_may_be_inputs_and_of_other_layouts(implementation: str):
    x = torch.randn(13, 7)
    strided = torch.zeros(7, 26).t()[::2]
    operation("scale_copy_", implementation)([x], [strided], torch.tensor(2.0), torch.zeros(1))
    assert torch.equal(strided, x * 2)
    expected = x * 2 + strided
    operation("axpby_", implementation)([x], [strided], [x], 2.0, 1.0, torch.zeros(1))
    torch.testing.assert_close(x, expected, **tolerances.SAME_MATHS)


@both_implementations
@pytest.mark.parametrize("dtype", FLOATING)
def test_l2_norm(implementation: str, dtype: torch.dtype):
    run = operation("l2_norm", implementation)
    tensors = random_tensors(dtype)
    total, each = run(tensors, True)
    exact = torch.tensor([item.double().norm().item() for item in tensors], dtype=torch.float64)
    torch.testing.assert_close(each, exact.float(), rtol=3e-7, atol=0)
    torch.testing.assert_close(total, exact.norm().float(), rtol=3e-7, atol=0)
    assert run(tensors, False)[1].shape == (0,)
    assert run([], True)[0].item() == 0.0
    tensors[3][7] = math.inf
    assert run(tensors, True)[1].isfinite().logical_not().nonzero().tolist() == [[3]]


@both_implementations
def test_splits_are_exact_and_nan_is_canonical(implementation: str):
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (100_003,), generator=generator, dtype=torch.int64)
    special = torch.tensor([0x7FFF8000, 0xFFFFFFFF - 2**32, 0x7F800001, 0x7F800000, 1, -(2**31)])
    source = torch.cat([patterns, special]).to(torch.int32).view(torch.float32)
    halves, remainders = source.bfloat16(), torch.empty(source.shape, dtype=torch.int16)
    joined = torch.empty_like(source)
    operation("split_", implementation)([source], [halves], [remainders])
    operation("join_", implementation)([halves], [remainders], [joined])
    nan = source.isnan()
    assert torch.equal(bits(joined)[~nan], bits(source)[~nan])
    assert bool((bits(joined)[nan] == 0x7FC00000).all())
    # Only ties are rounded otherwise than to the nearest even number.
    differs = (bits(halves) != bits(source.bfloat16())) & ~nan
    assert bool(((bits(source)[differs] & 0xFFFF) == 0x8000).all())


def test_splits_of_many_shapes():
    sources = random_tensors()
    halves = [torch.empty(item.shape, dtype=torch.bfloat16) for item in sources]
    remainders = [torch.empty(item.shape, dtype=torch.int16) for item in sources]
    outputs = [torch.empty_like(item) for item in sources]
    split_(sources, halves, remainders)
    join_(halves, remainders, outputs)
    assert same_bits(outputs, sources)
    assert len(outputs) == len(SHAPES)


@both_implementations
@pytest.mark.parametrize("hysteresis", [1, 3])
def test_the_loss_scale_moves_as_that_of_the_loss_scaler(implementation: str, hysteresis: int):
    settings: dict[str, Any] = {
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 3,
        "hysteresis": hysteresis,
    }
    limits = {"min_loss_scale": 4.0, "max_loss_scale": 64.0}
    scaler = LossScaler("dynamic", init_scale=16.0, **settings, **limits)
    scale = torch.tensor([16.0])
    growth, left = torch.tensor([0, hysteresis], dtype=torch.int32).unbind()
    flags = torch.rand(200, generator=torch.Generator().manual_seed(0)) < torch.linspace(
        0, 0.8, 200
    )
    seen = set()
    for flag in flags:
        scaler.record(flag)
        scaler.update()
        operation("update_scale_", implementation)(
            scale, growth, left, flag.float(), *settings.values(), *limits.values()
        )
        assert (scale.item(), growth.item(), left.item()) == (
            scaler.loss_scale,
            scaler.growth_tracker.item(),
            scaler.hysteresis_tracker.item(),
        )
        seen.add(scale.item())
    assert {4.0, 64.0} <= seen


@both_implementations
def test_what_does_not_fit_is_refused(implementation: str):
    x, flag, scale = torch.ones(3), torch.zeros(1), torch.ones(1)
    short = torch.zeros(3, dtype=torch.int16)
    for name, arguments, message in [
        ("scale_copy_", ([x], [], scale, flag), "outputs has 0 tensors; 1, as inputs, is needed"),
        ("scale_copy_", ([x], [short], scale, flag), r"outputs\[0\] is int16; float32 or"),
        ("scale_copy_", ([x], [x], x, flag), "scale is float32 with 3 elements"),
        (
            "scale_copy_",
            ([x, x], [x, x], scale, x),
            r"found_inf is float32 with 3 elements; float32 with 1 element, or contig.* \[2\],",
        ),
        ("scale_copy_", ([x, x], [x, x], scale, torch.zeros(2, 2)[:, 0]), "found_inf is float32"),
        ("axpby_", ([x], [x], [x], 1.0, 1.0, flag.half()), "found_inf is float16 with 1 elements"),
        (
            "axpby_",
            ([x], [x[:2]], [x], 1.0, 1.0, flag),
            r"y\[0\] has shape \[2\]; \[3\], as x\[0\]",
        ),
        ("axpby_", ([x], [x], [x[:1].expand(3)], 1.0, 1.0, flag), r"outputs\[0\] has elements in"),
        ("l2_norm", ([short], True), r"tensors\[0\] is int16; float32 or bfloat16 or float16"),
        ("split_", ([x], [x.half()], [short]), r"halves\[0\] is float16; bfloat16 is needed"),
        ("join_", ([x.bfloat16()], [short], [x.half()]), r"outputs\[0\] is float16; float32 is"),
        (
            "update_scale_",
            (scale, flag, flag, flag, 2.0, 0.5, 1, 1, 1.0, 2.0),
            "growth_tracker is float32 with 1 elements; int32 with 1 element is needed",
        ),
    ]:
        with pytest.raises(RuntimeError, match=f"lightning_mp::{name}: {message}"):
            operation(name, implementation)(*arguments)
    assert x.tolist() == [1.0] * 3

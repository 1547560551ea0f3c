"""Several backwards before a step: FP32 sums, scale changes, leftovers, several optimizers."""

import gc
import math
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from support import tolerances
from support.engine import (
    Mlp,
    assert_same,
    backward,
    make_batches,
    make_engine,
    set_gradients,
    snapshot,
    start,
)
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.gradient_clip import ClipRule

OPTIMIZERS = [partial(AdamW, lr=0.1), partial(SGD, lr=0.1)]


def start_weight(size: int = 103, level: str = "O2-bf16", **kwargs: Any) -> Any:
    model = nn.Linear(size, 1, bias=False)
    make_optimizer = kwargs.pop("make_optimizer", partial(SGD, lr=1.0))
    return model, *start(model, make_optimizer, level, **kwargs)


def add_gradient(engine: AmpEngine, weight: Tensor, value: Tensor, **kwargs: Any) -> None:
    with engine.forward_context():
        loss = (weight * value.to(weight.dtype)).float().sum()
    engine.scale_loss(loss, **kwargs).backward()


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_micro_batches_are_summed_in_fp32() -> None:
    torch.manual_seed(0)
    values = (torch.randn(64, 1, 103) + 1).bfloat16()
    model, engine, _ = start_weight()
    for value in values:
        add_gradient(engine, model.weight, value)
    assert gradient_of(model.weight).dtype == torch.float32
    exact = values.double().sum(0)
    half = torch.zeros(1, 103, dtype=torch.bfloat16)
    for value in values:
        half += value
    error = (gradient_of(model.weight) - exact).abs().sum()
    assert error * 5 < (half - exact).abs().sum()


def test_one_backward_leaves_a_half_gradient() -> None:
    model, engine, _ = start_weight()
    add_gradient(engine, model.weight, torch.ones(1, 103))
    assert gradient_of(model.weight).dtype == torch.bfloat16


def test_a_synchronising_backward_rounds_once() -> None:
    torch.manual_seed(0)
    values = torch.randn(7, 1, 103).bfloat16()
    model, engine, _ = start_weight()
    for value in values[:-1]:
        add_gradient(engine, model.weight, value)
    add_gradient(engine, model.weight, values[-1], is_synchronising=True)
    assert gradient_of(model.weight).dtype == torch.bfloat16
    total = values[:-1].float().sum(0).bfloat16() + values[-1]
    torch.testing.assert_close(gradient_of(model.weight), total, rtol=0, atol=0)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("is_looked", [True, False])
def test_zero_grad_in_both_forms(make_optimizer: Any, set_to_none: bool, is_looked: bool) -> None:
    results = []
    for uses_zero_grad in (True, False):
        model = Mlp()
        engine, optimizer = start(model, make_optimizer, "O2-fp16", init_scale=2.0**10)
        for batch in make_batches(3):
            if uses_zero_grad:
                optimizer.zero_grad(set_to_none=set_to_none)
            else:
                for parameter in model.parameters():
                    parameter.grad = None if set_to_none else torch.zeros_like(parameter)
            backward(engine, model, batch)
            engine.step(optimizer, is_looked=is_looked)
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


def test_zeroed_gradients_drop_what_came_before() -> None:
    model, engine, optimizer = start_weight()
    add_gradient(engine, model.weight, torch.ones(1, 103))
    add_gradient(engine, model.weight, torch.ones(1, 103))
    optimizer.zero_grad()
    add_gradient(engine, model.weight, torch.full((1, 103), 3.0))
    engine.step(optimizer, is_looked=True)
    assert torch.equal(gradient_of(model.weight), torch.full((1, 103), 3.0))


@pytest.mark.parametrize(("overflows", "factor"), [(True, 0.5), (False, 2.0)])
@pytest.mark.parametrize("value", [2.0**-24 / 2**10 * 2**10, 6e4])
def test_outstanding_gradients_follow_the_scale_exactly(
    overflows: bool, factor: float, value: float
) -> None:
    # 2**-24 is the smallest float16 and 6e4 doubled is beyond the largest: neither may be lost.
    model = nn.ModuleDict({"a": nn.Linear(3, 1, bias=False), "b": nn.Linear(3, 1, bias=False)})
    engine = make_engine("O2-fp16", init_scale=2.0**10, growth_interval=1)
    engine.convert(model)
    first, second = (SGD(model[name].parameters(), lr=0.1) for name in "ab")
    engine.attach([first, second])
    weight = model["a"].weight
    engine.scale_loss(torch.zeros((), requires_grad=True))
    weight.grad = torch.full_like(weight, value)
    exact = weight.grad.float() * factor
    set_gradients(model["b"], math.inf if overflows else 1.0)
    engine.step(second)
    assert engine.loss_scale == 2.0**10 * factor
    engine.scale_loss(torch.zeros((), requires_grad=True))
    assert torch.equal(gradient_of(weight), exact)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_two_backwards_then_two_steps(make_optimizer: Any) -> None:
    """The first step's overflow must not change how the second one is unscaled."""
    results = []
    for overflows in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(7, 3)})
        engine = make_engine("O2-fp16", init_scale=2.0**10, growth_interval=1)
        engine.convert(model)
        optimizers = [make_optimizer(model[name].parameters()) for name in "ab"]
        engine.attach(optimizers)
        for name, size in (("a", 5), ("b", 7)):
            with engine.forward_context():
                loss = model[name](torch.ones(2, size)).float().square().sum()
            engine.scale_loss(loss).backward()
        if overflows:
            gradient_of(model["a"].weight)[0, 0] = math.inf
        before = snapshot(engine, model["a"], optimizers[0])
        for optimizer in optimizers:
            engine.step(optimizer)
        is_same = torch.equal(engine.masters.of(model["a"].weight), before["weight.master"])
        assert is_same is overflows
        results.append(snapshot(engine, model["b"], optimizers[1]))
    assert_same(*results)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
def test_backward_after_a_manual_clip(make_optimizer: Any, level: str) -> None:
    """clip, backward, step: the clipped part counts as it is, the second part in full."""
    torch.manual_seed(0)
    model, engine, optimizer = start_weight(7, level, make_optimizer=make_optimizer, init_scale=8.0)
    add_gradient(engine, model.weight, torch.full((1, 7), 4.0))
    engine.step_of(optimizer).clip(ClipRule(clip_value=1.0))
    assert torch.equal(gradient_of(model.weight), torch.ones(1, 7))
    add_gradient(engine, model.weight, torch.full((1, 7), 2.0))
    engine.step(optimizer, is_looked=True)
    assert torch.equal(gradient_of(model.weight), torch.full((1, 7), 3.0))


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip_twice", [False, True])
def test_manual_clip_then_step(make_optimizer: Any, clip_twice: bool) -> None:
    results = []
    for is_manual in (True, False):
        model = Mlp()
        engine, optimizer = start(model, make_optimizer, "O2-fp16", init_scale=2.0**10)
        step = engine.step_of(optimizer)

        def clip(step: Any = step) -> None:
            step.clip(ClipRule(max_norm=0.1))
            if clip_twice:
                step.clip(ClipRule(clip_value=0.01))

        for batch in make_batches(3):
            optimizer.zero_grad()
            backward(engine, model, batch)
            if is_manual:
                clip()
                engine.step(optimizer)
            else:
                engine.step(optimizer, clip, is_looked=False)
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16", "O0"])
@pytest.mark.parametrize("is_looked", [(True, True), (True, False), (False, True), (False, False)])
def test_a_second_step_on_the_same_gradients(
    make_optimizer: Any, level: str, is_looked: tuple[bool, bool]
) -> None:
    model = nn.Linear(7, 3)
    plain = nn.Linear(7, 3)
    plain.load_state_dict(model.state_dict())
    engine, optimizer = start(model, make_optimizer, level)
    expected = make_optimizer(plain.parameters())
    engine.scale_loss(torch.zeros((), requires_grad=True))
    set_gradients(plain, 0.5)
    set_gradients(model, 0.5 * float(engine.scaler.scale) if level == "O2-bf16" else 0.5)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.float() * engine.scaler.scale
    for flag in is_looked:
        engine.step(optimizer, is_looked=flag)
        expected.step()
    for name, parameter in plain.named_parameters():
        master = engine.masters.of(model.get_parameter(name))
        torch.testing.assert_close(master, parameter, **tolerances.SAME_MATHS, check_stride=True)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("is_replaced", [False, True])
def test_gradients_left_unscaled_join_the_next_backward(
    make_optimizer: Any, is_replaced: bool
) -> None:
    """No zero_grad between steps: what a looked step left is scaled up again."""
    model, engine, optimizer = start_weight(
        7, "O2-fp16", make_optimizer=make_optimizer, init_scale=8.0
    )
    add_gradient(engine, model.weight, torch.full((1, 7), 3.0))

    def replace() -> None:
        if is_replaced:
            model.weight.grad = torch.full((1, 7), 3.0)

    engine.step(optimizer, replace)
    add_gradient(engine, model.weight, torch.full((1, 7), 2.0))
    engine.step(optimizer, is_looked=True)
    assert torch.equal(gradient_of(model.weight), torch.full((1, 7), 5.0))


def test_nothing_keeps_gradients_alive() -> None:
    model, engine, optimizer = start_weight(7)
    add_gradient(engine, model.weight, torch.ones(1, 7))
    seen: list[weakref.ref[Tensor]] = []
    engine.step(optimizer, lambda: seen.append(weakref.ref(gradient_of(model.weight))))
    optimizer.zero_grad()
    gc.collect()
    assert seen[0]() is None
    assert engine.masters.of(model.weight).grad is None


@pytest.mark.parametrize("optimizer_class", [SGD, torch.optim.SparseAdam])
@pytest.mark.parametrize("level", ["O2-bf16", "O2-fp16"])
@pytest.mark.parametrize("clip", [None, ClipRule(max_norm=0.5), ClipRule(clip_value=0.3)])
def test_sparse_gradients(optimizer_class: Any, level: str, clip: ClipRule | None) -> None:
    results = []
    for is_half in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(11, 4, sparse=True)
        engine, optimizer = start(
            model, partial(optimizer_class, lr=0.1), level if is_half else "O0", init_scale=8.0
        )
        step = engine.step_of(optimizer)
        for index in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                with engine.forward_context():
                    rows = model(torch.tensor([1, 3, 3, index]))
                engine.scale_loss(rows.float().sum()).backward()
            engine.step(optimizer, (lambda: step.clip(clip)) if clip else None)  # noqa: B023
        results.append(engine.masters.of(model.weight).detach())
    torch.testing.assert_close(*results, **tolerances.SAME_MATHS)


def test_sparse_rows_are_added_in_fp32() -> None:
    model = nn.Embedding(5, 1, sparse=True)
    engine, optimizer = start(model, partial(SGD, lr=1.0))
    nn.init.zeros_(model.weight)
    rows = model(torch.tensor([2] * 300))
    engine.scale_loss(rows.float().sum()).backward()
    engine.step(optimizer)
    # bfloat16 cannot count beyond 256.
    assert engine.masters.of(model.weight)[2].tolist() == [-300.0]


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_groups_of_several_dtypes(make_optimizer: Any) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.half = nn.Linear(5, 3)
            self.norm = nn.LayerNorm(3)
            self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    model = Mixed()
    engine, optimizer = start(model, make_optimizer)
    step = engine.step_of(optimizer)
    for value in (0.5, 1e200):
        set_gradients(model, 0.5)
        model.wide.grad = torch.full((3,), value, dtype=torch.float64)
        before = snapshot(engine, model, optimizer)
        engine.step(optimizer, lambda: step.clip(ClipRule(max_norm=1.0)))
        after = snapshot(engine, model, optimizer)
        assert engine.skipped_steps == 0
        assert not torch.equal(before["wave.master"], after["wave.master"]) or value > 1
    assert model.wave.dtype == torch.complex64
    assert model.wide.dtype == torch.float64


def test_optimizer_without_gradients_is_neither_good_nor_bad() -> None:
    model = Mlp()
    engine, optimizer = start(model, AdamW, "O2-fp16")
    before = snapshot(engine, model, optimizer)
    engine.step(optimizer)
    assert_same(snapshot(engine, model, optimizer), before)
    assert not engine.scaler.has_pending
    assert engine.skipped_steps == 0


class Plain(Optimizer):
    """An optimizer of unknown make that counts its calls."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.dtypes: list[torch.dtype] = []

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for item in group["params"]:
                self.dtypes += [item.dtype, item.grad.dtype]


def test_own_optimizers_see_masters_and_fp32_gradients() -> None:
    model = Mlp()
    engine, optimizer = start(model, Plain, "O2-fp16", init_scale=8.0)
    assert isinstance(optimizer, Plain)
    backward(engine, model, make_batches(1)[0])
    engine.step(optimizer)
    assert set(optimizer.dtypes) == {torch.float32}
    assert all(not item.requires_grad or item.is_leaf for item in model.parameters())


@pytest.mark.parametrize("is_looked", [False, True])
def test_half_gradients_left_by_o3_are_known_to_be_unscaled(is_looked: bool) -> None:
    """The step itself replaces them: without masters it takes gradients in half."""
    model = Mlp()
    engine, optimizer = start(model, partial(SGD, lr=0.0), "O3-bf16", loss_scale=1024.0)
    second = SGD(model.first.parameters(), lr=1.0)
    engine.attach([second])
    before = model.first.weight.detach().clone()
    set_gradients(model, 2.0 * 1024.0)
    engine.step(optimizer, is_looked=is_looked)
    engine.step(second, is_looked=is_looked)
    torch.testing.assert_close(model.first.weight.detach(), before - 2.0, atol=0.02, rtol=0.0)
    engine.scale_loss(torch.zeros((), requires_grad=True))
    assert torch.equal(gradient_of(model.first.weight), torch.full((17, 13), 2048.0))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("is_looked", [False, True])
def test_a_parameter_of_two_optimizers_is_unscaled_once(
    scale: float, make_optimizer: Any, is_looked: bool
) -> None:
    model, plain = Mlp(), Mlp()
    engine, first = start(model, make_optimizer, "O2-bf16", loss_scale=scale)
    second = make_optimizer(model.first.parameters())
    engine.attach([second])
    plain_first = make_optimizer(plain.parameters())
    plain_second = make_optimizer(plain.first.parameters())
    for _ in range(3):
        set_gradients(model, 0.5 * scale)
        set_gradients(plain, 0.5)
        engine.step(first, is_looked=is_looked)
        engine.step(second, is_looked=is_looked)
        plain_first.step()
        plain_second.step()
        engine.scale_loss(torch.zeros((), requires_grad=True))
    for name, parameter in plain.named_parameters():
        master = engine.masters.of(model.get_parameter(name))
        torch.testing.assert_close(master, parameter, **tolerances.SAME_MATHS)

"""What hooks write to gradients counts, whichever side they take."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from support.engine import Mlp, assert_same, set_gradients, snapshot, start
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.gradient_clip import ClipRule


def double_gradients(model: nn.Module, engine: AmpEngine, optimizer: Optimizer, how: str) -> None:
    masters = [item for group in optimizer.param_groups for item in group["params"]]
    for parameter, master in zip(model.parameters(), masters, strict=True):
        item = parameter if how.startswith("model") else master
        if item.grad is None:
            continue
        if how.endswith("in place"):
            item.grad.mul_(2)
        else:
            item.grad = item.grad * 2


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
@pytest.mark.parametrize(
    "how", ["model in place", "model replaced", "master in place", "master replaced"]
)
def test_hooks_may_write_gradients(optimizer_class: Any, level: str, how: str) -> None:
    results = []
    for factor in (1.0, 2.0):
        model = Mlp()
        engine, optimizer = start(model, partial(optimizer_class, lr=0.1), level, loss_scale=8.0)
        set_gradients(model, 4.0 * factor)
        write = partial(double_gradients, model, engine, optimizer, how)
        engine.step(optimizer, write if factor == 1.0 else None)
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_hooks_may_build_graphs(optimizer_class: Any) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
    set_gradients(model)
    seen = []
    engine.step(optimizer, lambda: seen.append(torch.is_grad_enabled()))
    assert seen == [True]


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
@pytest.mark.parametrize("side", ["model", "master"])
def test_a_hook_may_drop_a_gradient(optimizer_class: Any, side: str) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
    set_gradients(model)

    def drop() -> None:
        item = model.first.weight
        (item if side == "model" else engine.masters.of(item)).grad = None

    before = snapshot(engine, model, optimizer)
    engine.step(optimizer, drop)
    after = snapshot(engine, model, optimizer)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "first.weight.master" not in changed
    assert {"first.bias.master", "norm.weight.master", "last.weight.half"} <= changed
    assert optimizer.state.get(engine.masters.of(model.first.weight), {}) == {}


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_a_hook_may_add_a_gradient(optimizer_class: Any) -> None:
    model = nn.Linear(5, 3)
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
    model.weight.grad = torch.ones_like(model.weight)
    before = snapshot(engine, model, optimizer)

    def add() -> None:
        model.bias.grad = torch.ones(3)

    engine.step(optimizer, add)
    assert not torch.equal(engine.masters.of(model.bias), before["bias.master"])


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_a_replaced_gradient_is_checked_too(optimizer_class: Any) -> None:
    model = nn.Linear(5, 3)
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
    set_gradients(model)
    before = snapshot(engine, model, optimizer)

    def spoil() -> None:
        model.weight.grad = torch.full_like(model.weight, math.inf, dtype=torch.float32)

    engine.step(optimizer, spoil)
    assert_same(
        {
            name: value
            for name, value in snapshot(engine, model, optimizer).items()
            if name in before
        },
        before,
    )
    assert engine.skipped_steps == 1


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16", "O3-bf16"])
@pytest.mark.parametrize("how", ["model in place", "model replaced", "master replaced"])
def test_what_a_hook_wrote_is_clipped(optimizer_class: Any, level: str, how: str) -> None:
    """The gradient clipping of a Trainer runs after the hooks that may replace gradients."""
    results = []
    for factor in (1.0, 2.0):
        model = Mlp()
        engine, optimizer = start(model, partial(optimizer_class, lr=0.1), level, loss_scale=8.0)
        set_gradients(model, 4.0 * factor)

        def hooks(*arguments: Any, is_write: bool = factor == 1.0) -> None:
            if is_write:
                double_gradients(*arguments)
            engine.step_of(optimizer).clip(ClipRule(clip_value=0.625))  # noqa: B023

        engine.step(optimizer, partial(hooks, model, engine, optimizer, how))
        results.append(snapshot(engine, model, optimizer))
        assert model.first.weight.grad is not None
        assert set(model.first.weight.grad.view(-1).tolist()) == {0.625}
    assert_same(*results)


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_a_half_tensor_may_replace_a_gradient(optimizer_class: Any) -> None:
    model = nn.Linear(5, 3)
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
    set_gradients(model, 4.0)

    def replace() -> None:
        model.weight.grad = torch.full_like(model.weight, 0.5)
        engine.step_of(optimizer).clip(ClipRule(clip_value=0.25))

    engine.step(optimizer, replace)
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32
    assert set(model.weight.grad.view(-1).tolist()) == {0.25}

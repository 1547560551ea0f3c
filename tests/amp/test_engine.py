"""The engine as a whole: its life cycle, its errors and its records."""

import doctest
import math
from functools import partial
from typing import Any

import pytest
import torch
from support.engine import (
    Mlp,
    assert_same,
    backward,
    make_batches,
    make_engine,
    set_gradients,
    snapshot,
    start,
    train,
)
from torch import nn
from torch.optim import SGD, AdamW

from lightning_mp.amp import (
    closure_step,
    gradient_clip,
    master_weights,
    module_hooks,
)
from lightning_mp.amp import (
    engine as engine_module,
)


@pytest.mark.parametrize(
    "module", [engine_module, gradient_clip, closure_step, master_weights, module_hooks]
)
def test_examples_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_engine_has_an_example() -> None:
    assert doctest.testmod(engine_module).attempted >= 8


def test_a_whole_run_resumes_bit_for_bit() -> None:
    def make() -> Any:
        model = Mlp()
        return model, *start(model, partial(AdamW, lr=1e-2), "O2-fp16", growth_interval=3)

    batches = make_batches(12)
    model, engine, optimizer = make()
    train(engine, model, optimizer, batches)
    first, engine_1, optimizer_1 = make()
    train(engine_1, first, optimizer_1, batches[:5])
    second, engine_2, optimizer_2 = make()
    second.load_state_dict(first.state_dict())
    second.num_calls = first.num_calls
    optimizer_2.load_state_dict(optimizer_1.state_dict())
    engine_2.load_scaler_state(engine_1.scaler.state_dict())
    train(engine_2, second, optimizer_2, batches[5:])
    assert_same(snapshot(engine, model, optimizer), snapshot(engine_2, second, optimizer_2))
    assert engine.scaler.state_dict() == engine_2.scaler.state_dict()


def test_training_goes_on_after_restore() -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(AdamW, lr=1e-2))
    train(engine, model, optimizer, make_batches(3))
    masters = {
        name: engine.masters.of(item).detach().clone() for name, item in model.named_parameters()
    }
    moments = {key: value.clone() for key, value in optimizer.state_dict()["state"][0].items()}
    engine.restore()
    assert not engine.is_converted
    assert not engine.steps
    assert_same(dict(model.state_dict()), masters)
    assert_same(optimizer.state_dict()["state"][0], moments)
    assert all(item.grad is None for item in model.parameters())
    engine.convert(model)
    engine.attach([optimizer])
    losses = train(engine, model, optimizer, make_batches(20))
    assert losses[-1] < losses[0]


def test_restore_twice_is_restore() -> None:
    engine, _ = start(Mlp(), SGD)
    engine.restore()
    engine.restore()
    assert not engine.is_converted


def test_masters_before_convert_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"no model was converted yet; call convert\(model\)"):
        _ = make_engine().masters


def test_a_strange_optimizer_is_an_error() -> None:
    engine, optimizer = start(Mlp(), SGD)
    stranger = AdamW(Mlp().parameters())
    with pytest.raises(KeyError, match="AdamW is not attached to this engine"):
        engine.step_of(stranger)
    with pytest.raises(KeyError, match="AdamW is not attached"):
        engine.step(stranger)
    assert list(engine.steps) == [optimizer]


def test_a_bad_scaler_state_changes_nothing() -> None:
    engine, _ = start(Mlp(), SGD, "O2-fp16")
    before = engine.scaler.state_dict()
    with pytest.raises(ValueError, match="loss scaler state has the keys"):
        engine.load_scaler_state({})
    assert engine.scaler.state_dict() == before


@pytest.mark.parametrize(
    ("level", "is_scaled"), [("O2-fp16", True), ("O2-bf16", False), ("O0", False)]
)
def test_losses_are_scaled_in_fp32(level: str, is_scaled: bool) -> None:
    engine = make_engine(level)
    engine.convert(nn.Linear(3, 2))
    loss = torch.tensor(1.5, dtype=torch.bfloat16, requires_grad=True)
    scaled = engine.scale_loss(loss)
    if is_scaled:
        assert scaled.dtype == torch.float32
        assert scaled.tolist() == 1.5 * 2.0**16
    else:
        assert scaled is loss


def test_overflows_are_recorded_in_order() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    engine = make_engine("O2-fp16")
    engine.convert(model)
    optimizers = [SGD(model[name].parameters()) for name in "ab"]
    engine.attach(optimizers)
    for number, bad in enumerate(["", "a", "b", "ab"]):
        for name, optimizer in zip("ab", optimizers, strict=True):
            set_gradients(model[name], math.inf if name in bad else 1.0)
            engine.step(optimizer, num_steps=number)
        engine.scale_loss(torch.zeros((), requires_grad=True))
    records = engine.overflows(wait=True)
    assert [(item.step, item.optimizer_index) for item in records] == [
        (1, 0), (2, 1), (3, 0), (3, 1)
    ]  # fmt: skip
    assert records[0].parameter_names == ("a.weight", "a.bias")
    assert [item.scale for item in records] == [2.0**16, 2.0**15, 2.0**14, 2.0**14]
    assert [item.new_scale for item in records] == [2.0**15, 2.0**14, 2.0**13, 2.0**13]
    assert engine.skipped_steps == 4
    assert engine.overflows() == []


def test_loss_scale_tells_of_the_next_backward() -> None:
    model = Mlp()
    engine, optimizer = start(model, SGD, "O2-fp16")
    set_gradients(model, math.inf)
    engine.step(optimizer)
    assert engine.loss_scale == 2.0**15
    assert float(engine.scaler.scale) == 2.0**16
    engine.scale_loss(torch.zeros((), requires_grad=True))
    assert float(engine.scaler.scale) == 2.0**15


@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16", "O3-bf16", "O0"])
def test_frozen_and_unfrozen_parameters(level: str) -> None:
    model = Mlp()
    model.first.requires_grad_(False)
    engine, optimizer = start(model, partial(SGD, lr=0.1), level)
    frozen = engine.masters.of(model.first.weight).detach().clone()
    train(engine, model, optimizer, make_batches(2))
    assert torch.equal(engine.masters.of(model.first.weight), frozen)
    model.first.requires_grad_(True)
    train(engine, model, optimizer, make_batches(3))
    assert not torch.equal(engine.masters.of(model.first.weight), frozen)
    engine.restore()
    assert all(item.requires_grad for item in model.parameters())


def test_two_engines_do_not_meet() -> None:
    models = [Mlp(), Mlp(seed=2)]
    pairs = [start(models[0], SGD, "O2-fp16"), start(models[1], AdamW, "O2-bf16")]
    for (engine, optimizer), model in zip(pairs, models, strict=True):
        backward(engine, model, make_batches(1)[0])
        engine.step(optimizer)
    assert models[0].first.weight.dtype == torch.float16
    pairs[0][0].restore()
    assert models[1].first.weight.dtype == torch.bfloat16


def test_an_eps_that_vanishes_in_half_is_told() -> None:
    with pytest.warns(UserWarning, match=r"AdamW\(eps=1e-08\) at O3 steps in float16"):
        start(Mlp(), AdamW, "O3-fp16")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make_optimizer", [torch.optim.Adafactor, partial(AdamW, eps=1e-4)])
def test_an_eps_of_another_kind_is_left_alone(make_optimizer: Any) -> None:
    start(Mlp(), make_optimizer, "O3-fp16")

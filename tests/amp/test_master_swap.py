"""Parameter groups hold model parameters outside, masters inside, and states stay FP32."""

import copy
import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from packaging.version import Version
from support.engine import (
    Mlp,
    assert_same,
    make_batches,
    make_engine,
    set_gradients,
    snapshot,
    start,
    train,
)
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from lightning_mp.amp.closure_step import ClosureStep

OPTIMIZERS: dict[str, Any] = {
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "AMSGrad": partial(optim.Adam, amsgrad=True),
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9),
    "Adagrad": partial(optim.Adagrad, initial_accumulator_value=0.1),
    "RMSprop": partial(optim.RMSprop, centered=True, momentum=0.9),
    "Adadelta": optim.Adadelta,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adamax": optim.Adamax,
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
    "Adafactor": optim.Adafactor,
    "LBFGS": optim.LBFGS,
}


def ids(optimizer: Optimizer) -> list[int]:
    return [id(item) for group in optimizer.param_groups for item in group["params"]]


def floats_of(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [item for inner in value.values() for item in floats_of(inner)]
    if isinstance(value, list):
        return [item for inner in value for item in floats_of(inner)]
    return [value] if isinstance(value, Tensor) and value.is_floating_point() else []


def step_once(engine: Any, model: nn.Module, optimizer: Optimizer) -> None:
    batch = make_batches(1)[0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        with engine.forward_context():
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        engine.scale_loss(loss).backward()
        return loss.detach()

    if isinstance(optimizer, optim.LBFGS):
        ClosureStep(engine.step_of(optimizer), engine.masters).run(closure, lambda: None)
    else:
        closure()
        engine.step(optimizer)


def train_some(name: str, num_steps: int = 2) -> Any:
    model = Mlp()
    engine, optimizer = start(model, OPTIMIZERS[name])
    for _ in range(num_steps):
        step_once(engine, model, optimizer)
    return model, engine, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_hold_model_parameters_and_states_are_fp32(name: str) -> None:
    model, _, optimizer = train_some(name)
    assert ids(optimizer) == [id(item) for item in model.parameters()]
    assert set(optimizer.state) <= set(model.parameters())
    assert {item.dtype for item in floats_of(dict(optimizer.state))} == {torch.float32}
    saved = optimizer.state_dict()
    assert ids(optimizer) == [id(item) for item in model.parameters()]
    assert {item.dtype for item in floats_of(saved["state"])} == {torch.float32}
    assert set(saved["state"]) <= set(range(len(list(model.parameters()))))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loaded_state_goes_on_exactly(name: str) -> None:
    model, engine, optimizer = train_some(name)
    other = Mlp()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    other.num_calls = model.num_calls
    other_engine, other_optimizer = start(other, OPTIMIZERS[name])
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert ids(other_optimizer) == [id(item) for item in other.parameters()]
    step_once(engine, model, optimizer)
    step_once(other_engine, other, other_optimizer)
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    assert_same(snapshot(engine, model, optimizer), snapshot(other_engine, other, other_optimizer))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_ordinary_after_restore(name: str) -> None:
    model, engine, optimizer = train_some(name)
    saved = copy.deepcopy(optimizer.state_dict()["state"])
    engine.restore()
    assert set(optimizer.state) <= set(model.parameters())
    assert ids(optimizer) == [id(item) for item in model.parameters()]
    assert {item.dtype for item in floats_of(dict(optimizer.state))} == {torch.float32}
    assert not optimizer._optimizer_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks
    after = optimizer.state_dict()["state"]
    assert saved.keys() == after.keys()
    for first, second in zip(floats_of(saved), floats_of(after), strict=True):
        assert torch.equal(first, second)

    def closure() -> float:
        set_gradients(model)
        return 0.0

    optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_refused_state_changes_nothing(name: str) -> None:
    model, _, optimizer = train_some(name)
    before = copy.deepcopy(optimizer.state_dict())
    if name == "LBFGS":
        bad = optim.LBFGS(nn.Linear(3, 2).parameters()).state_dict()
    else:
        bad = OPTIMIZERS[name](nn.Linear(3, 2).parameters()).state_dict()
    with pytest.raises(ValueError, match="size of optimizer's group"):
        optimizer.load_state_dict(bad)
    assert ids(optimizer) == [id(item) for item in model.parameters()]
    after = optimizer.state_dict()
    for first, second in zip(floats_of(before), floats_of(after), strict=True):
        assert torch.equal(first, second)
    optimizer.load_state_dict(before)
    assert ids(optimizer) == [id(item) for item in model.parameters()]


@pytest.mark.parametrize("bad", [{}, {"state": {}, "param_groups": []}])
def test_a_broken_state_changes_nothing(bad: dict[str, Any]) -> None:
    model, engine, optimizer = train_some("AdamW")
    before = snapshot(engine, model, optimizer)
    with pytest.raises((KeyError, ValueError), match=r"param_groups|different number"):
        optimizer.load_state_dict(bad)
    assert ids(optimizer) == [id(item) for item in model.parameters()]
    assert_same(snapshot(engine, model, optimizer), before)


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_another_hook_that_refuses_a_load_leaves_the_groups(is_ours_first: bool) -> None:
    model = Mlp()
    engine = make_engine()
    engine.convert(model)
    optimizer = optim.AdamW(model.parameters())

    def refuse(*_: Any) -> None:
        raise RuntimeError("not this one")

    if is_ours_first:
        engine.attach([optimizer])
    optimizer.register_load_state_dict_pre_hook(refuse)
    if not is_ours_first:
        engine.attach([optimizer])
    with pytest.raises(RuntimeError, match="not this one"):
        optimizer.load_state_dict(optimizer.state_dict())
    set_gradients(model)
    engine.step(optimizer)
    assert ids(optimizer) == [id(item) for item in model.parameters()]


@pytest.mark.parametrize(
    "name",
    [
        "AdamW",
        "SGD",
        pytest.param(
            "Adagrad",
            marks=pytest.mark.skipif(
                Version(torch.__version__) < Version("2.12"),
                reason="torch's own Adagrad makes no state for a group added later",
            ),
        ),
    ],
)
def test_groups_added_later(name: str) -> None:
    model = Mlp()
    engine = make_engine()
    engine.convert(model)
    optimizer = OPTIMIZERS[name](model.first.parameters())
    engine.attach([optimizer])
    train(engine, model, optimizer, make_batches(2))
    before = engine.masters.of(model.last.weight).detach().clone()
    optimizer.add_param_group({"params": list(model.last.parameters())})
    train(engine, model, optimizer, make_batches(2))
    assert not torch.equal(engine.masters.of(model.last.weight), before)
    assert {item.dtype for item in floats_of(dict(optimizer.state))} == {torch.float32}
    assert set(optimizer.state) == {*model.first.parameters(), *model.last.parameters()}
    optimizer.add_param_group({"params": list(model.norm.parameters())})
    saved = optimizer.state_dict()
    assert {item.dtype for item in floats_of(saved["state"])} == {torch.float32}


def test_masters_are_in_while_asked_for() -> None:
    model = Mlp()
    engine, optimizer = start(model, optim.SGD)
    swap = engine.step_of(optimizer).swap
    outside = ids(optimizer)
    inside = [id(engine.masters.of(item)) for item in model.parameters()]
    the_list = optimizer.param_groups[0]["params"]
    assert inside != outside
    with engine.step_of(optimizer).swap.masters_in():
        assert ids(optimizer) == inside
        with engine.step_of(optimizer).swap.masters_in():
            assert ids(optimizer) == inside
        assert ids(optimizer) == inside
        with swap.masters_out():
            assert ids(optimizer) == outside
            optimizer.state_dict()
            assert ids(optimizer) == outside
        assert ids(optimizer) == inside
        assert [id(item) for item in swap.parameters] == outside
        optimizer.state_dict()
        assert ids(optimizer) == inside
    assert ids(optimizer) == outside
    assert optimizer.param_groups[0]["params"] is the_list


@pytest.mark.parametrize("where", ["in", "out"])
def test_an_exception_inside_puts_the_parameters_back(where: str) -> None:
    model = Mlp()
    engine, optimizer = start(model, optim.SGD)
    outside = ids(optimizer)
    swap = engine.step_of(optimizer).swap

    def fail() -> None:
        with swap.masters_in():
            if where == "in":
                raise KeyboardInterrupt
            with swap.masters_out():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert ids(optimizer) == outside


def test_a_step_that_raises_puts_the_parameters_back() -> None:
    model = Mlp()
    engine, optimizer = start(model, optim.SGD)
    outside = ids(optimizer)

    def refuse(*_: Any) -> None:
        raise RuntimeError("no step today")

    handle = optimizer.register_step_pre_hook(refuse)
    set_gradients(model)
    with pytest.raises(RuntimeError, match="no step today"):
        engine.step(optimizer)
    assert ids(optimizer) == outside
    handle.remove()
    before = engine.masters.of(model.first.weight).detach().clone()
    engine.step(optimizer)
    assert not torch.equal(engine.masters.of(model.first.weight), before)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_readers_find_the_state_of_a_parameter_and_harm_nothing(name: str) -> None:
    """A state is a defaultdict: looking for a key that is not there makes one."""
    model, engine, optimizer = train_some(name)
    before = snapshot(engine, model, optimizer)
    for parameter in model.parameters():
        assert optimizer.state[parameter]
    optimizer.state_dict()
    with engine.step_of(optimizer).swap.masters_in():
        for parameter in model.parameters():
            _ = optimizer.state[parameter]
    assert_same(snapshot(engine, model, optimizer), before)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "LBFGS"])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))]
)
def test_optimizers_can_be_copied_between_steps(name: str, duplicate: Any) -> None:
    model, engine, optimizer = train_some(name)
    before = snapshot(engine, model, optimizer)
    twin = duplicate(optimizer)
    assert len(twin.state) == len(optimizer.state)
    assert not twin._optimizer_state_dict_pre_hooks
    assert twin.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
    assert_same(snapshot(engine, model, optimizer), before)
    step_once(engine, model, optimizer)


def test_sparse_adam_states_are_fp32() -> None:
    model = nn.Embedding(11, 3, sparse=True)

    def make(parameters: Iterable[Tensor]) -> Optimizer:
        return optim.SparseAdam(list(parameters))

    engine, optimizer = start(model, make)
    with engine.forward_context():
        loss = model(torch.tensor([1, 1, 3])).float().sum()
    engine.scale_loss(loss).backward()
    engine.step(optimizer)
    assert {item.dtype for item in floats_of(optimizer.state_dict()["state"])} == {torch.float32}


def test_earlier_states_are_taken_over() -> None:
    """An optimizer that trained in FP32 before the model was converted goes on with its moments."""
    model = Mlp()
    optimizer = optim.AdamW(model.parameters())
    set_gradients(model)
    optimizer.step()
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    engine = make_engine()
    engine.convert(model)
    engine.attach([optimizer])
    found = optimizer.state_dict()["state"]
    for index, entry in expected.items():
        assert_same(entry, found[index])


def test_attaching_twice_is_attaching_once() -> None:
    model = Mlp()
    engine, optimizer = start(model, optim.AdamW)
    step = engine.step_of(optimizer)
    engine.attach([optimizer])
    assert engine.step_of(optimizer) is step
    assert len(optimizer._optimizer_state_dict_pre_hooks) == 1

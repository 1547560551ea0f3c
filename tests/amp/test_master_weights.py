"""Masters are exact, find outside writes by value, and come back bit for bit."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from support.engine import (
    ConvNet,
    Mlp,
    assert_same,
    make_batches,
    make_engine,
    set_gradients,
    start,
    train,
)
from torch import Tensor, nn
from torch.optim import SGD, AdamW

LEVELS = ["O2-fp16", "O2-bf16"]


def fp32_copy(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(dict(model.state_dict()))


class WithBuffers(nn.Module):
    """A layer with a persistent, a shared and a growing buffer."""

    table: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.other = nn.Module()
        self.register_buffer("table", torch.randn(7))
        self.register_buffer("twin", self.table)
        self.other.register_buffer("table", self.table)
        self.register_buffer("cache", torch.zeros(0, 3), persistent=False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make_model", [Mlp, ConvNet, WithBuffers])
def test_masters_are_the_fp32_weights(level: str, make_model: Any) -> None:
    model = make_model()
    before = fp32_copy(model)
    engine = make_engine(level)
    engine.convert(model)
    assert engine.masters.has_masters
    for name, parameter in model.named_parameters():
        master = engine.masters.of(parameter)
        assert torch.equal(master, before[name])
        assert engine.masters.owner_of(master) is parameter
        if master is not parameter:
            assert torch.equal(parameter, before[name].to(engine.properties.half_dtype))


@pytest.mark.parametrize("level", [*LEVELS, "O3-fp16", "O3-bf16"])
@pytest.mark.parametrize("make_model", [Mlp, ConvNet, WithBuffers])
@pytest.mark.parametrize("num_cycles", [1, 2])
def test_restore_is_exact(level: str, make_model: Any, num_cycles: int) -> None:
    """At O3 too as long as nobody trains: validation must not round the weights."""
    model = make_model()
    before, identities = fp32_copy(model), [id(item) for item in model.parameters()]
    engine = make_engine(level)
    for _ in range(num_cycles):
        engine.convert(model)
        engine.restore()
    assert_same(dict(model.state_dict()), before)
    assert [id(item) for item in model.parameters()] == identities
    assert not engine.is_converted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_restored_model_may_be_cast_by_others(dtype: torch.dtype) -> None:
    model = Mlp()
    engine, optimizer = start(model, SGD)
    set_gradients(model)
    engine.step(optimizer)
    engine.restore()
    model.to(dtype)
    model(torch.ones(3, 13, dtype=dtype)).sum().backward()
    assert {item.grad.dtype for item in model.parameters()} == {dtype}


def test_converting_twice_starts_from_the_masters() -> None:
    model = Mlp()
    before = fp32_copy(model)
    engine = make_engine("O2-bf16")
    engine.convert(model)
    engine.convert(model)
    engine.restore()
    assert_same(dict(model.state_dict()), before)


def test_o3_has_no_masters_once_it_trains() -> None:
    model = Mlp()
    engine, optimizer = start(model, SGD, "O3-bf16")
    assert not engine.masters.has_masters
    half = model.first.weight.detach().clone()
    engine.restore()
    assert torch.equal(model.first.weight, half.float())
    set_gradients(model)
    optimizer.step()


@pytest.mark.parametrize("moments", [AdamW, partial(SGD, momentum=0.9)])
def test_optimizers_are_ordinary_after_o3(moments: Any) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(moments, lr=1e-3), "O3-bf16")
    train(engine, model, optimizer, make_batches(2))
    engine.restore()
    set_gradients(model)
    optimizer.step()
    dtypes = {value.dtype for state in optimizer.state.values() for value in state.values()}
    assert dtypes == {torch.float32}


def write_item(item: Tensor, value: float) -> None:
    item.view(-1)[3] = value


WRITES = {
    "data": lambda item, value: write_item(item.data, value),
    "no_grad": lambda item, value: torch.no_grad()(write_item)(item, value),
    "copy": lambda item, value: item.data.copy_(_with_item(item, value)),
    "replaced": lambda item, value: setattr(item, "data", _with_item(item, value)),
}


def _with_item(item: Tensor, value: float) -> Tensor:
    new = item.detach().clone()
    write_item(new, value)
    return new


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("value", [0.75, 0.0, math.inf, math.nan])
def test_outside_writes_are_adopted_per_element(level: str, how: str, value: float) -> None:
    model = nn.Linear(7, 3)
    engine = make_engine(level)
    engine.convert(model)
    expected = engine.masters.of(model.weight).detach().clone()
    write_item(expected, value)
    WRITES[how](model.weight, value)
    engine.masters.adopt([model.weight])
    master = engine.masters.of(model.weight).detach()
    torch.testing.assert_close(master, expected, rtol=0, atol=0, equal_nan=True)
    engine.restore()
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 103])
@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_single_written_element_is_found(size: int, index: int, offset: int) -> None:
    """Halves are compared four at a time where size and address allow."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.linspace(0.1, 0.9, size)))
    engine = make_engine("O2-bf16")
    engine.convert(model)
    weight, master = model.weight, engine.masters.of(model.weight)
    storage = torch.zeros(size + offset, dtype=weight.dtype)
    storage[offset:] = weight.detach()
    weight.data = storage[offset:]
    expected = master.detach().clone()
    expected[index] = -2.0
    weight.data[index] = -2.0
    engine.masters.adopt([weight])
    assert torch.equal(master, expected)


@pytest.mark.parametrize("optimizer_class", [SGD, AdamW])
@pytest.mark.parametrize("is_looked", [True, False])
def test_a_step_adopts_first(optimizer_class: Any, is_looked: bool) -> None:
    results = []
    for is_outside in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(7, 3)
        engine, optimizer = start(model, partial(optimizer_class, lr=0.1))
        write_item(model.weight.data, 0.75)
        if not is_outside:
            write_item(engine.masters.of(model.weight).data, 0.75)
        set_gradients(model)
        engine.step(optimizer, is_looked=is_looked)
        results.append(engine.masters.of(model.weight).detach())
    assert torch.equal(*results)


def test_untouched_weights_keep_their_low_bits_through_a_step() -> None:
    model = nn.Linear(7, 3)
    before = fp32_copy(model)
    engine, optimizer = start(model, partial(SGD, lr=0.0))
    write_item(model.weight.data, 0.75)
    set_gradients(model)
    engine.step(optimizer)
    write_item(before["weight"], 0.75)
    assert torch.equal(engine.masters.of(model.weight), before["weight"])


def test_push_rounds_the_masters() -> None:
    model = Mlp()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    for parameter in model.parameters():
        engine.masters.of(parameter).data.add_(1.0)
    before = model.last.weight.detach().clone()
    engine.masters.push([model.first.weight, model.norm.weight])
    master = engine.masters.of(model.first.weight)
    assert torch.equal(model.first.weight, master.bfloat16())
    assert torch.equal(model.last.weight, before)


def test_small_updates_are_not_lost() -> None:
    model = nn.Linear(7, 3)
    engine, optimizer = start(model, partial(SGD, lr=2.0**-14))
    nn.init.ones_(model.weight)
    for _ in range(64):
        set_gradients(model, 1.0)
        engine.step(optimizer)
    assert torch.equal(engine.masters.of(model.weight), torch.full((3, 7), 1 - 2.0**-8))
    assert torch.equal(model.weight.float(), torch.full((3, 7), 1 - 2.0**-8))


def test_shared_buffers_stay_shared() -> None:
    model = WithBuffers()
    original = model.table
    engine = make_engine("O2-bf16")
    engine.convert(model)
    assert model.table is model.twin is model.other.table
    assert model.table.dtype == torch.bfloat16
    engine.restore()
    assert model.table is model.twin is model.other.table is original


@pytest.mark.parametrize("how", ["in place", "replaced", "regrown", "another dtype", "removed"])
def test_written_buffers(how: str) -> None:
    model = WithBuffers()
    expected = model.table.clone()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    new: Any = model.table.clone()
    if how == "in place":
        model.table[2] = 3.0
        expected[2] = 3.0
    elif how == "replaced":
        new[2] = 3.0
        expected[2] = 3.0
        model.table = new
    elif how == "regrown":
        model.table = torch.arange(9.0).bfloat16()
        expected = torch.arange(9.0)
    elif how == "another dtype":
        model.table = expected = torch.arange(9)
    else:
        model.table = expected = None
    saved = model.state_dict().get("table")
    engine.restore()
    for found in (saved, model.table):
        assert found is None if expected is None else torch.equal(found, expected)
        assert expected is None or found.dtype == expected.dtype


def test_a_replaced_twin_does_not_write_to_the_other() -> None:
    model = WithBuffers()
    before = model.table.clone()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    model.table = torch.ones(7, dtype=torch.bfloat16)
    state = model.state_dict()
    assert torch.equal(state["table"], torch.ones(7))
    assert torch.equal(state["other.table"], before)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_masters_follow_the_model_back_to_the_host() -> None:
    model = WithBuffers()
    before = fp32_copy(model)
    engine = make_engine("O2-bf16")
    engine.convert(model)
    model.cuda()
    engine.attach([SGD(model.parameters())])
    model.cpu()
    engine.restore()
    assert_same(dict(model.state_dict()), before)

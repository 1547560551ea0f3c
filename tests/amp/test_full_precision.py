"""FP32 stand-ins for half parameters and buffers."""

import pytest
import torch
from support.engine import Mlp, make_engine, start
from torch import nn

from lightning_mp.amp.full_precision import full_precision

HALF = {"O2-fp16": torch.float16, "O2-bf16": torch.bfloat16}


class Shared(nn.Module):
    """A tied weight, a frozen one, and a buffer that two modules share."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(7, 13), nn.Linear(7, 13, bias=False)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.inner = nn.Module()
        self.register_buffer("table", torch.rand(13))
        self.inner.register_buffer("table", self.table)
        self.register_buffer("count", torch.tensor(3))


def tensors_of(model):
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16", "O3-fp16", "O3-bf16"])
def test_values_are_fp32_meanwhile(level):
    model = Shared()
    before = [item.detach().clone() for item in tensors_of(model)]
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1), level)
    own = tensors_of(model)
    with full_precision(engine.masters):
        inside = tensors_of(model)
        assert model.second.weight is model.first.weight
        assert not model.first.bias.requires_grad
        assert isinstance(model.first.weight, nn.Parameter)
        if level.startswith("O3"):
            # Buffers keep their values; weights are half for good.
            before[:2] = [item.detach().float() for item in own[:2]]
        for item, expected in zip(inside, before, strict=True):
            assert torch.equal(item, expected)
            assert item.dtype == expected.dtype
    assert [id(item) for item in tensors_of(model)] == [id(item) for item in own]


@pytest.mark.parametrize("level", HALF)
@pytest.mark.parametrize("way", ["copy", "data"])
def test_writes_stay_in_full(level, way):
    model = Shared()
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1), level)
    new = [torch.rand(item.shape) for item in (model.first.weight, model.table)]
    with full_precision(engine.masters), torch.no_grad():
        for item, value in zip((model.first.weight, model.table), new, strict=True):
            if way == "copy":
                item.copy_(value)
            else:
                item.data = value.clone()
    assert torch.equal(engine.masters.of(model.first.weight), new[0])
    assert torch.equal(model.first.weight, new[0].to(HALF[level]))
    saved = model.state_dict()
    assert torch.equal(saved["table"], new[1])
    assert torch.equal(saved["inner.table"], new[1])


def test_writes_are_rounded_where_there_is_no_master():
    model = Mlp()
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1), "O3-bf16")
    new = torch.rand(17, 13)
    with full_precision(engine.masters), torch.no_grad():
        model.first.weight.copy_(new)
    assert torch.equal(model.first.weight, new.bfloat16())


def test_writes_from_outside_are_seen():
    model = Mlp()
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1))
    model.first.weight.data[3, 5] = 0.5
    with full_precision(engine.masters):
        assert model.first.weight[3, 5] == 0.5


def test_undone_after_an_exception():
    model = Mlp()
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1))
    own = tensors_of(model)

    def fail():
        with full_precision(engine.masters), torch.no_grad():
            model.first.bias.fill_(0.1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert [id(item) for item in tensors_of(model)] == [id(item) for item in own]
    assert torch.equal(model.first.bias, engine.masters.of(model.first.bias).bfloat16())


def test_nested_use_keeps_the_outer_tensors():
    model = Mlp()
    engine, _ = start(model, lambda items: torch.optim.SGD(items, lr=0.1))
    with full_precision(engine.masters):
        outer = model.first.weight
        with full_precision(engine.masters):
            assert model.first.weight is outer
        assert model.first.weight is outer
    assert model.first.weight.dtype == torch.bfloat16


def test_nothing_happens_at_o0():
    model = Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    own = tensors_of(model)
    with full_precision(engine.masters):
        assert [id(item) for item in tensors_of(model)] == [id(item) for item in own]

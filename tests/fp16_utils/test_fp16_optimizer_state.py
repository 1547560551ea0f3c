"""What FP16_Optimizer saves, loads, takes over and copies."""

import copy
import io
import types

import pytest
import torch
from support.fp16_optimizer import BATCHES, SCALES, Net, loss_of, make, masters_of, sgd, train

from lightning_mp.fp16_utils import FP16_Optimizer, convert_network


@pytest.mark.parametrize("scale", SCALES)
def test_resumed_run_is_bit_equal(scale):
    model, optimizer = make(**scale)
    train(model, optimizer, BATCHES[:6])
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train(model, optimizer, BATCHES[6:])
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, other = make(**scale)
    resumed.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    assert torch.equal(train(resumed, other, BATCHES[6:]), expected)
    assert other.loss_scale == optimizer.loss_scale
    for found, wanted in zip(masters_of(other), masters_of(optimizer), strict=True):
        assert torch.equal(found, wanted)


def test_scaler_object_of_apex_is_understood():
    model, optimizer = make(dynamic_loss_scale=True, dynamic_loss_args={"scale_window": 10})
    saved = optimizer.state_dict()
    saved["loss_scaler"] = types.SimpleNamespace(
        cur_scale=512.0, cur_iter=30, last_overflow_iter=11, scale_window=10
    )
    optimizer.load_state_dict(saved)
    assert optimizer.loss_scale == 512.0
    train(model, optimizer, BATCHES[:1])
    assert optimizer.loss_scale == 512.0
    train(model, optimizer, BATCHES[1:2])
    assert optimizer.loss_scale == 1024.0
    saved["loss_scaler"] = types.SimpleNamespace(cur_scale=2.0)
    _, fixed = make(static_loss_scale=8.0)
    fixed.load_state_dict(saved)
    assert fixed.loss_scale == 8.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("overflow"), r"the state has no \['overflow'\]"),
        (
            lambda state: state["fp32_from_fp16"][0].pop(),
            "the state has masters of the shapes .*; expected",
        ),
        (lambda state: state.update(loss_scaler=3), "loss_scaler = 3; a mapping or"),
        (
            lambda state: state.update(loss_scaler={"loss_scale": -1.0}),
            r"loss_scale = -1\.0; allowed is",
        ),
    ],
)
def test_state_of_something_else_is_refused_and_changes_nothing(change, message: str):
    _, optimizer = make(dynamic_loss_scale=True)
    before = masters_of(optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["fp32_from_fp16"]:
        for item in group:
            item += 1
    change(state)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.loss_scale == 2.0**32
    for found, expected in zip(masters_of(optimizer), before, strict=True):
        assert torch.equal(found, expected)


def test_state_of_earlier_steps_moves_to_the_masters_in_fp32():
    model = convert_network(Net(), torch.float16)
    inner = sgd(model.parameters())
    loss_of(model, BATCHES[0]).backward()
    inner.step()
    optimizer = FP16_Optimizer(inner, verbose=False)
    assert len(optimizer.state) == len(list(model.parameters()))
    for master in optimizer.param_groups[0]["params"]:
        assert optimizer.state[master]["momentum_buffer"].dtype == torch.float32


def test_copy_steps_its_own_model():
    model, optimizer = make()
    train(model, optimizer, BATCHES[:2])
    before = copy.deepcopy(model.state_dict())
    twin, other = copy.deepcopy((model, optimizer))
    train(twin, other, BATCHES[2:4])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(twin.first.weight, model.first.weight)

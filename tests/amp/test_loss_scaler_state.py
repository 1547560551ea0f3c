"""State of a LossScaler: saved, restored, refused."""

import random

import pytest
import torch
from support.loss_scales import INF, OK, ratio_of, snapshot

from lightning_mp.amp import LossScaler


def test_state_dict_holds_plain_numbers_as_of_the_next_update():
    scaler = LossScaler(init_scale=64.0, hysteresis=2)
    scaler.record(INF)
    scaler.update()
    scaler.record(INF)
    state = scaler.state_dict()
    assert state == {
        "loss_scale": 32.0,
        "growth_tracker": 0,
        "hysteresis_tracker": 0,
        "skipped_steps": 2,
        "consecutive_skips": 2,
        "is_dynamic": True,
    }
    assert {type(value) for value in state.values()} == {float, int, bool}
    assert scaler.has_pending
    assert scaler.loss_scale == 64.0
    assert ratio_of(scaler) == 0.5


@pytest.mark.parametrize("num_before", [0, 5, 13])
def test_a_restored_scaler_goes_on_as_the_first_would(num_before):
    settings = {"init_scale": 64.0, "growth_interval": 3, "hysteresis": 2}
    rng = random.Random(num_before)
    first = LossScaler(**settings)
    for _ in range(num_before):
        first.record(INF if rng.random() < 0.5 else OK)
        first.update()
    second = LossScaler(**settings)
    second.load_state_dict(first.state_dict())
    for _ in range(23):
        assert second.state_dict() == first.state_dict()
        flag = INF if rng.random() < 0.4 else OK
        for scaler in (first, second):
            scaler.record(flag)
            scaler.update()


@pytest.mark.parametrize("hysteresis", [1, 3])
def test_state_of_grad_scaler(hysteresis):
    stock = torch.amp.GradScaler("cpu", init_scale=512.0)
    state = stock.state_dict()
    assert "_growth_tracker" in state
    state["_growth_tracker"] = 17
    scaler = LossScaler(hysteresis=hysteresis)
    scaler.load_state_dict(state)
    assert scaler.loss_scale == 512.0
    assert scaler.growth_tracker.item() == 17
    assert scaler.hysteresis_tracker.item() == hysteresis


def test_loading_drops_pending_records_and_keeps_the_device():
    scaler = LossScaler()
    scaler.record(torch.zeros((), device="meta"))
    scaler.load_state_dict({"loss_scale": 8.0})
    assert not scaler.has_pending
    assert scaler.scale.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "state", "scale", "growth_tracker"),
    [
        (lambda: LossScaler(128.0), {"loss_scale": 64.0, "growth_tracker": 5}, 128.0, 0),
        (lambda: LossScaler(), {"loss_scale": 1.0, "is_dynamic": False}, 65536.0, 0),
        (lambda: LossScaler(), {"loss_scale": 2.0**30, "growth_tracker": 5}, 2.0**24, 5),
        (lambda: LossScaler(min_loss_scale=4.0), {"loss_scale": 1}, 4.0, 0),
    ],
)
def test_arguments_stay_in_force_after_a_load(make, state, scale, growth_tracker):
    scaler = make()
    scaler.load_state_dict({**state, "skipped_steps": 3, "hysteresis_tracker": 9})
    assert scaler.loss_scale == scaler.scale.item() == scale
    assert scaler.growth_tracker.item() == growth_tracker
    assert scaler.hysteresis_tracker.item() == 1
    assert scaler.num_skipped_steps.item() == 3


def test_a_growth_tracker_beyond_a_shorter_interval_grows_at_the_next_good_step():
    scaler = LossScaler(init_scale=64.0, growth_interval=10)
    scaler.load_state_dict({"loss_scale": 64.0, "growth_tracker": 1500})
    scaler.record(OK)
    assert ratio_of(scaler) == 2.0
    assert scaler.growth_tracker.item() == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"state has the keys \[\]; 'loss_scale', or 'scale' and"),
        ({"growth_tracker": 1}, r"state has the keys \['growth_tracker'\]"),
        ({"loss_scale": 0.0}, r"loss_scale = 0.0; allowed is 2\*\*-126 to 2\*\*126; pass"),
        ({"loss_scale": float("nan")}, r"loss_scale = nan"),
        ({"loss_scale": float("inf")}, r"loss_scale = inf"),
        ({"loss_scale": "8"}, r"loss_scale = '8'"),
        ({"loss_scale": True}, r"loss_scale = True"),
        ({"scale": -1.0, "_growth_tracker": 0}, r"\bscale = -1.0"),
        ({"scale": 8.0, "_growth_tracker": -1}, r"_growth_tracker = -1; allowed is an int"),
        ({"loss_scale": 8.0, "growth_tracker": 1.5}, r"growth_tracker = 1.5; allowed is an int"),
        ({"loss_scale": 8.0, "hysteresis_tracker": None}, r"hysteresis_tracker = None"),
        ({"loss_scale": 8.0, "skipped_steps": 2**31}, r"skipped_steps = 2147483648"),
        ({"loss_scale": 8.0, "consecutive_skips": "a"}, r"consecutive_skips = 'a'"),
        ({"loss_scale": 8.0, "is_dynamic": 1}, r"is_dynamic = 1; allowed are True and False"),
    ],
)
def test_a_refused_state_changes_nothing(state, message):
    scaler = LossScaler(growth_interval=5)
    scaler.record(INF)
    before = snapshot(scaler)
    with pytest.raises(ValueError, match=message):
        scaler.load_state_dict(state)
    assert snapshot(scaler) == before

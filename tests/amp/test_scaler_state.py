"""The plain numbers around the loss scaler: the forms a loss scale may have, and saved states."""

import pytest

from lightning_mp.amp import parse_loss_scale
from lightning_mp.amp.scaler_state import ScalerState


@pytest.mark.parametrize(
    "value",
    [0, 0.0, -1.0, "-2", float("nan"), float("inf"), "inf", 1e39, 1e-50, True, "", None, [1.0]],
)
def test_bad_loss_scale(value):
    with pytest.raises(ValueError, match=r"loss_scale = .*; allowed are .*finite positive.*; use"):
        parse_loss_scale(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("dynamic", "dynamic"), ("1e3", 1000.0), (2.0**126, 2.0**126), (2.0**-126, 2.0**-126)],
)
def test_loss_scale(value, expected):
    assert parse_loss_scale(value) == expected


def test_a_parsed_state_parses_to_itself():
    state = ScalerState(8.0, 5, 2, 7, 1, True)
    assert ScalerState.parse(state._asdict(), hysteresis=3) == state


@pytest.mark.parametrize("key", ["loss_scale", "scale"])
def test_missing_values_have_defaults(key):
    state = ScalerState.parse({key: 8, "growth_factor": 2.0}, hysteresis=3)
    assert state == ScalerState(8.0, hysteresis_tracker=3)
    assert isinstance(state.loss_scale, float)


def test_own_keys_win_over_those_of_grad_scaler():
    state = {"loss_scale": 8.0, "growth_tracker": 1, "scale": 4.0, "_growth_tracker": 2}
    assert ScalerState.parse(state, hysteresis=1) == ScalerState(8.0, growth_tracker=1)

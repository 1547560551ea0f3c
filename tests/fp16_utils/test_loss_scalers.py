import pytest
import torch

from lightning_mp.fp16_utils import DynamicLossScaler, LossScaler

BAD = [float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("scale", [1, 128.0, 0.5])
def test_fixed_scale_multiplies_and_never_moves(scale: float):
    scaler = LossScaler(scale)
    weight = torch.ones(3, requires_grad=True)
    scaler.backward((weight * 2).sum())
    assert torch.equal(weight.grad, torch.full((3,), 2.0 * scale))
    scaler.update_scale(True)
    assert scaler.loss_scale == scaler.cur_scale == scale


def test_dynamic_scale_starts_high_and_follows_its_rule():
    scaler = DynamicLossScaler()
    assert (scaler.loss_scale, scaler.scale_factor, scaler.scale_window) == (2.0**32, 2.0, 1000)
    scaler = DynamicLossScaler(init_scale=64.0, scale_factor=4.0, scale_window=3)
    scales = []
    for overflow in (True, False, False, False, False, False, True, False, False, False):
        scaler.update_scale(overflow)
        scales.append(scaler.cur_scale)
    assert scales == [16.0, 16.0, 16.0, 64.0, 64.0, 64.0, 16.0, 16.0, 16.0, 64.0]


def test_dynamic_scale_ends_at_1_however_long_it_overflows():
    scaler = DynamicLossScaler(init_scale=2.0**20)
    for _ in range(3000):
        scaler.update_scale(True)
    assert scaler.loss_scale == 1.0


def test_backward_can_keep_the_graph():
    weight = torch.ones(3, requires_grad=True)
    loss = weight.square().sum()
    scaler = DynamicLossScaler(init_scale=8.0)
    scaler.backward(loss, retain_graph=True)
    scaler.backward(loss)
    assert torch.equal(weight.grad, torch.full((3,), 32.0))


@pytest.mark.parametrize("scaler", [LossScaler(), DynamicLossScaler()])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bad", BAD)
def test_overflow_is_found_wherever_it_is(scaler: LossScaler, dtype: torch.dtype, bad: float):
    params = [torch.ones(7, dtype=dtype, requires_grad=True) for _ in range(3)]
    assert not scaler.has_overflow(params)
    params[1].grad = torch.ones(7, dtype=dtype)
    assert not scaler.has_overflow(iter(params))
    params[1].grad[6] = bad
    assert scaler.has_overflow(params)


def test_backward_hook_scales_what_there_is():
    first, second = LossScaler(4.0).scale_gradient(None, (torch.ones(3), None), None)
    assert torch.equal(first, torch.full((3,), 4.0))
    assert second is None


@pytest.mark.parametrize("make", [lambda: LossScaler(3.0), DynamicLossScaler])
def test_scale_can_be_set(make):
    scaler = make()
    scaler.cur_scale = 32.0
    assert scaler.loss_scale == 32.0
    scaler.loss_scale = 16.0
    assert scaler.cur_scale == 16.0


def test_setting_the_scale_keeps_the_count_of_good_steps():
    scaler = DynamicLossScaler(init_scale=8.0, scale_window=3)
    scaler.update_scale(False)
    scaler.update_scale(False)
    scaler.loss_scale = 32.0
    scaler.update_scale(False)
    assert scaler.loss_scale == 64.0


@pytest.mark.parametrize("value", [0.0, 0.5, -1.0, 2.0**127, float("nan")])
def test_dynamic_scale_out_of_range_is_refused(value: float):
    scaler = DynamicLossScaler()
    with pytest.raises(ValueError, match=r"loss_scale = .*; allowed is 1 to 2\*\*126"):
        scaler.loss_scale = value
    assert scaler.loss_scale == 2.0**32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_scale": 0.5}, r"init_scale = 0\.5; allowed is min_loss_scale = 1\.0"),
        ({"scale_factor": 1.0}, r"scale_factor = 1\.0; allowed is a number above 1"),
        ({"scale_factor": 0.0}, r"scale_factor = 0\.0; allowed is a number above 1"),
        ({"scale_window": 0}, "growth_interval = 0; allowed is an int from 1"),
    ],
)
def test_dynamic_arguments_out_of_range_are_refused(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        DynamicLossScaler(**arguments)


def test_fixed_scale_out_of_range_is_refused():
    with pytest.raises(ValueError, match="loss_scale = 0; allowed are 'dynamic' and"):
        LossScaler(0)


def test_state_is_plain_and_goes_on_where_it_was():
    scaler = DynamicLossScaler(init_scale=8.0, scale_window=3)
    scaler.update_scale(False)
    scaler.update_scale(False)
    state = scaler.state_dict()
    assert all(isinstance(value, int | float) for value in state.values())
    restored = DynamicLossScaler(scale_window=3)
    restored.load_state_dict(state)
    assert restored.loss_scale == 8.0
    restored.update_scale(False)
    assert restored.loss_scale == 16.0

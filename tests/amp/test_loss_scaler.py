"""LossScaler against a plain-Python reference, its limits and its lack of syncs."""

import copy
import random
from dataclasses import dataclass

import pytest
import torch
from support.loss_scales import INF, OK, ratio_of, snapshot
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.amp import LossScaler


def f32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


@dataclass
class Reference:
    """The update rule in plain Python, rounded to float32 where the scaler is."""

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    min_loss_scale: float
    max_loss_scale: float
    hysteresis: int
    growth_tracker: int = 0
    overflows_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.scale = f32(self.scale)

    @property
    def hysteresis_tracker(self) -> int:
        return max(self.hysteresis - self.overflows_in_a_row, 0)

    def update(self, overflow: bool) -> None:
        if overflow:
            self.growth_tracker = 0
            self.overflows_in_a_row += 1
            if self.overflows_in_a_row >= self.hysteresis:
                shrunk = f32(self.scale * f32(self.backoff_factor))
                self.scale = max(shrunk, f32(self.min_loss_scale))
            return
        self.overflows_in_a_row = 0
        self.growth_tracker += 1
        if self.growth_tracker == self.growth_interval:
            self.growth_tracker = 0
            self.scale = min(f32(self.scale * f32(self.growth_factor)), f32(self.max_loss_scale))


class NoSync(TorchDispatchMode):
    """Fail where a value is read by the host, and count the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_ops += 1
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("hysteresis", [1, 2, 3])
@pytest.mark.parametrize(
    "factors",
    [
        {
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "min_loss_scale": 4.0,
            "max_loss_scale": 64.0,
        },
        {"growth_factor": 1.7, "backoff_factor": 0.3, "min_loss_scale": 0.1, "max_loss_scale": 9e4},
        {"growth_factor": 8.0, "backoff_factor": 0.9, "min_loss_scale": 1.0, "max_loss_scale": 1e3},
    ],
)
def test_random_sequences_follow_the_reference(seed, hysteresis, factors):
    rng = random.Random(seed)
    settings = {**factors, "growth_interval": rng.choice([1, 3, 7]), "hysteresis": hysteresis}
    scaler = LossScaler(init_scale=32.0, **settings)
    reference = Reference(32.0, **settings)
    num_skipped = num_consecutive = 0
    seen = set()
    for step in range(103):
        probability = 0.9 if step // 20 % 2 else 0.05  # calm and stormy spells
        overflows = [rng.random() < probability for _ in range(rng.choice([1, 1, 2]))]
        for overflow in overflows:
            scaler.record(INF if overflow else OK)
            num_skipped += overflow
            num_consecutive = num_consecutive + 1 if overflow else 0
        old = reference.scale
        reference.update(any(overflows))
        predicted = scaler.next_scale.item()
        assert ratio_of(scaler) == f32(reference.scale / old)
        assert scaler.loss_scale == predicted == reference.scale
        assert scaler.growth_tracker.item() == reference.growth_tracker
        assert scaler.hysteresis_tracker.item() == reference.hysteresis_tracker
        assert scaler.num_skipped_steps.item() == num_skipped
        assert scaler.num_consecutive_skips.item() == num_consecutive
        seen.add(reference.scale)
    assert len(seen) > 2


def test_defaults():
    scaler = LossScaler()
    assert scaler.is_dynamic
    assert not scaler.is_identity
    assert scaler.loss_scale == 65536.0
    for _ in range(2000):
        assert scaler.loss_scale == 65536.0
        scaler.record(OK)
        scaler.update()
    assert scaler.loss_scale == 131072.0
    assert scaler.growth_tracker.item() == 0


@pytest.mark.parametrize("floor", [2.0**-10, 0.001, 1.0])
def test_nan_for_3000_steps_ends_at_the_floor(floor):
    scaler = LossScaler(min_loss_scale=floor)
    for _ in range(3000):
        scaler.record(torch.tensor(float("nan")))
        scaler.update()
    assert scaler.loss_scale == f32(floor)
    assert scaler.inv_scale.isfinite()
    assert scaler.num_skipped_steps.item() == scaler.num_consecutive_skips.item() == 3000
    scaler.record(OK)
    scaler.update()
    assert scaler.loss_scale == f32(floor)
    assert scaler.num_consecutive_skips.item() == 0


def test_growth_is_clamped_to_the_cap():
    scaler = LossScaler(init_scale=48.0, growth_interval=1, max_loss_scale=64.0)
    scaler.record(OK)
    assert ratio_of(scaler) == f32(64.0 / 48.0)
    assert scaler.loss_scale == 64.0
    scaler.record(OK)
    assert ratio_of(scaler) == 1.0


def test_growth_never_reaches_infinity():
    scaler = LossScaler(
        init_scale=2.0**126, max_loss_scale=2.0**126, growth_factor=2.0**100, growth_interval=1
    )
    scaler.record(OK)
    scaler.update()
    assert scaler.loss_scale == 2.0**126
    assert scaler.inv_scale.item() == 2.0**-126


def test_updates_without_records_do_nothing():
    scaler = LossScaler(growth_interval=1)
    assert not scaler.has_pending
    assert scaler.update() is None
    scaler.record(OK)
    assert scaler.has_pending
    assert scaler.update() is not None
    assert not scaler.has_pending
    assert scaler.update() is None
    assert scaler.loss_scale == 2.0**17


def test_several_records_are_one_overflow_of_the_update():
    scaler = LossScaler(init_scale=64.0)
    for flag, next_scale in ((OK, 64.0), (INF, 32.0), (INF, 32.0), (OK, 32.0)):
        scaler.record(flag)
        assert scaler.next_scale.item() == next_scale
    assert ratio_of(scaler) == 0.5
    assert scaler.loss_scale == 32.0
    assert scaler.num_skipped_steps.item() == 2
    assert scaler.num_consecutive_skips.item() == 0


def test_static_scale_never_moves_but_counts():
    scaler = LossScaler(128.0, growth_interval=1)
    assert not scaler.is_dynamic
    assert not scaler.is_identity
    for flag in (INF, OK, INF, INF):
        scaler.record(flag)
        assert scaler.has_pending
        assert scaler.update() is None
        assert not scaler.has_pending
    assert scaler.loss_scale == scaler.scale.item() == scaler.next_scale.item() == 128.0
    assert scaler.num_skipped_steps.item() == 3
    assert scaler.num_consecutive_skips.item() == 2


@pytest.mark.parametrize(
    ("loss_scale", "expected"), [("dynamic", 65536.0 * 1.5), (128.0, 192.0), (1.0, 1.5)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scaled_loss_is_float32(loss_scale, expected, dtype):
    scaler = LossScaler(loss_scale)
    loss = torch.tensor(1.5, dtype=dtype, requires_grad=True)
    scaled = scaler.scale_loss(loss)
    assert scaled.dtype is torch.float32
    assert scaled.item() == expected
    if dtype in (torch.float32, torch.float64):
        scaled.backward()
        assert loss.grad == torch.tensor(expected / 1.5)
    assert scaler.is_identity is (loss_scale == 1.0)


def test_an_update_between_forward_and_backward_keeps_the_scale_used():
    scaler = LossScaler(init_scale=64.0)
    weight = torch.tensor(3.0, requires_grad=True)
    scaled, used = scaler.scale_loss(weight * 1.0), scaler.scale
    scaler.record(INF)
    scaler.update()
    scaled.backward()
    assert weight.grad == used == torch.tensor(64.0)
    assert scaler.loss_scale == 32.0


@pytest.mark.parametrize("scale", [2.0**-10, 3.0, 7.7, 2.0**24])
def test_inverse_scale_is_correctly_rounded(scale):
    scaler = LossScaler(scale)
    assert scaler.inv_scale.dtype is torch.float32
    assert scaler.inv_scale.item() == f32(1.0 / f32(scale))


@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0, 1.0])
def test_the_step_path_never_waits(loss_scale):
    scaler = LossScaler(loss_scale, growth_interval=2, hysteresis=2)
    loss = torch.tensor(2.0, requires_grad=True)
    with NoSync() as mode:
        for flag in (OK, INF, INF, OK, OK):
            scaler.to("cpu")
            scaler.scale_loss(loss)
            _ = scaler.inv_scale
            scaler.record(flag)
            scaler.record(flag)
            _ = scaler.next_scale, scaler.has_pending, scaler.is_identity
            scaler.update()
    assert mode.num_ops > 0
    with NoSync(), pytest.raises(AssertionError, match="waits for the device"):
        scaler.scale.item()


@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0, 1.0])
def test_everything_follows_the_loss_to_its_device(loss_scale):
    scaler = LossScaler(loss_scale)
    scaled = scaler.scale_loss(torch.zeros((), device="meta", dtype=torch.float16))
    assert scaler.scale.device.type == "meta"
    scaler.record(torch.zeros((), device="meta"))
    scaler.record(torch.tensor(0.0))
    scaler.update()
    tensors = {name: value for name, value in vars(scaler).items() if isinstance(value, Tensor)}
    assert len(tensors) == 5
    for tensor in (*tensors.values(), scaled, scaler.inv_scale):
        assert tensor.device.type == "meta"
        assert tensor.shape == ()
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    assert dtypes.pop("scale") is torch.float32
    assert set(dtypes.values()) == {torch.int32}


def test_a_record_moves_a_scaler_that_saw_no_loss():
    scaler = LossScaler()
    scaler.record(torch.zeros((), device="meta"))
    assert scaler.scale.device.type == scaler.next_scale.device.type == "meta"
    assert scaler.to("meta") is scaler


def test_pending_records_move_with_the_scaler():
    scaler = LossScaler()
    scaler.record(INF)
    assert scaler.next_scale.device.type == "cpu"
    scaler.to("meta")
    assert scaler.next_scale.device.type == "meta"
    assert scaler.update() is not None
    assert scaler.scale.device.type == "meta"


def test_dtypes_do_not_follow_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        scaler = LossScaler(growth_interval=1)
        for flag in (torch.tensor(False), torch.tensor(1, dtype=torch.int32), torch.tensor(0.0)):
            scaler.record(flag)
            ratio = scaler.update()
            assert ratio is not None
            assert ratio.dtype is scaler.scale.dtype is scaler.inv_scale.dtype is torch.float32
            for counter in (scaler.growth_tracker, scaler.hysteresis_tracker):
                assert counter.dtype is torch.int32
    finally:
        torch.set_default_dtype(torch.float32)


def test_state_starts_on_the_cpu_under_a_default_device():
    with torch.device("meta"):
        assert LossScaler().scale.device.type == "cpu"


def test_record_refuses_other_shapes_and_changes_nothing():
    scaler = LossScaler()
    before = snapshot(scaler)
    with pytest.raises(ValueError, match=r"found_inf has shape \(1,\); a 0-dim .*reduce it"):
        scaler.record(torch.zeros(1))
    assert snapshot(scaler) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_scale": 0}, r"loss_scale = 0; allowed are 'dynamic' and a finite positive"),
        ({"loss_scale": "auto"}, r"loss_scale = 'auto'"),
        ({"init_scale": 0.0}, r"init_scale = 0.0; allowed is min_loss_scale = 0.0009765625 to"),
        ({"init_scale": 2.0**25}, r"init_scale = 33554432.0; .*max_loss_scale = 16777216.0; set"),
        ({"init_scale": float("nan")}, r"init_scale = nan"),
        ({"init_scale": "65536"}, r"init_scale = '65536'"),
        ({"growth_factor": 1.0}, r"growth_factor = 1.0; allowed is a number above 1; "),
        ({"growth_factor": float("inf")}, r"growth_factor = inf"),
        ({"backoff_factor": 1.0}, r"backoff_factor = 1.0; allowed is a number between 0 and 1"),
        ({"backoff_factor": 0.0}, r"backoff_factor = 0.0"),
        ({"growth_interval": 0}, r"growth_interval = 0; allowed is an int from 1"),
        ({"growth_interval": 2.5}, r"growth_interval = 2.5"),
        ({"growth_interval": 2**31}, r"growth_interval = 2147483648"),
        ({"hysteresis": 0}, r"hysteresis = 0; allowed is an int from 1"),
        ({"hysteresis": True}, r"hysteresis = True"),
        ({"min_loss_scale": 0.0}, r"min_loss_scale = 0.0; allowed is 2\*\*-126 to .*above 0"),
        ({"min_loss_scale": 2.0**25}, r"min_loss_scale = 33554432.0; .*max_loss_scale"),
        ({"max_loss_scale": float("inf")}, r"max_loss_scale = inf; allowed is 2\*\*-126 to"),
        ({"max_loss_scale": None}, r"max_loss_scale = None"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LossScaler(**arguments)


def test_a_copy_is_independent():
    scaler = LossScaler()
    other = copy.deepcopy(scaler)
    other.record(INF)
    other.update()
    assert (scaler.loss_scale, other.loss_scale) == (65536.0, 32768.0)

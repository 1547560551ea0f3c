"""OverflowTracker: which steps, which parameters, when it warns, and what it costs."""

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.amp import (
    HostFlag,
    LossScaleCollapseWarning,
    LossScaler,
    OverflowRecord,
    OverflowTracker,
)

NAMES = ("conv.weight", "conv.bias", "head.weight")
ALL_FINITE = (True, True, True)


class LateFlag(HostFlag):
    """A flag that arrives when the test, or a read, says so."""

    def __init__(self, value: bool) -> None:
        super().__init__(torch.tensor(value))
        self.is_here = False

    def is_ready(self) -> bool:
        return self.is_here

    def read(self) -> bool:
        self.is_here = True
        return super().read()


class NoSync(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def push(
    tracker: OverflowTracker,
    step: int,
    skipped: bool,
    *,
    index: int = 0,
    finite: tuple[bool, ...] | None = None,
    flag: HostFlag | None = None,
    new_scale: float | None = None,
) -> None:
    if finite is None:
        finite = (True, False, False) if skipped else ALL_FINITE
    tracker.push(
        step,
        index,
        flag or HostFlag(torch.tensor(float(skipped))),
        torch.tensor(64.0),
        torch.tensor(finite),
        NAMES,
        new_scale=None if new_scale is None else torch.tensor(new_scale),
    )


def test_only_skipped_steps_are_reported_in_order():
    tracker = OverflowTracker()
    for step, skipped in enumerate([False, True, False, True, True]):
        push(tracker, step, skipped, index=step % 2, new_scale=32.0)
    records = tracker.drain()
    assert [(record.step, record.optimizer_index) for record in records] == [(1, 1), (3, 1), (4, 0)]
    assert records[0] == OverflowRecord(
        step=1,
        optimizer_index=1,
        scale=64.0,
        new_scale=32.0,
        parameter_names=("conv.bias", "head.weight"),
        num_skipped_steps=1,
    )
    assert [record.num_skipped_steps for record in records] == [1, 2, 3]
    assert tracker.num_skipped_steps == 3
    assert tracker.drain() == []


def test_a_scale_that_does_not_move():
    tracker = OverflowTracker()
    push(tracker, 0, True)
    assert tracker.drain()[0].new_scale == 64.0


def test_new_scale_is_that_of_the_scaler_after_the_step():
    scaler, tracker = LossScaler(init_scale=64.0, hysteresis=2), OverflowTracker()
    for step, skipped in enumerate([True, True, False, True]):
        found_inf, scale = torch.tensor(float(skipped)), scaler.scale
        scaler.record(found_inf)
        tracker.push(
            step,
            0,
            HostFlag(found_inf),
            scale,
            torch.tensor([not skipped]),
            ["weight"],
            new_scale=scaler.next_scale,
        )
        scaler.update()
    scales = [(record.scale, record.new_scale) for record in tracker.drain()]
    assert scales == [(64.0, 64.0), (64.0, 32.0), (32.0, 32.0)]


def test_tensors_may_be_written_again():
    tracker = OverflowTracker()
    found_inf, scale, flags = torch.tensor(1.0), torch.tensor(64.0), torch.tensor([True, False])
    new_scale = torch.tensor(32.0)
    tracker.push(0, 0, HostFlag(found_inf), scale, flags, ["a", "b"], new_scale=new_scale)
    for tensor in (found_inf, scale, flags, new_scale):
        tensor.zero_()
    (record,) = tracker.drain()
    assert (record.scale, record.new_scale, record.parameter_names) == (64.0, 32.0, ("b",))


def test_the_count_goes_on_from_a_checkpoint():
    tracker = OverflowTracker()
    tracker.num_skipped_steps = 40
    push(tracker, 7, True)
    assert tracker.drain()[0].num_skipped_steps == 41


def test_late_flags_stay_queued_and_keep_the_order():
    tracker = OverflowTracker()
    first, second = LateFlag(True), LateFlag(True)
    push(tracker, 0, True, flag=first)
    push(tracker, 1, True, flag=second)
    second.is_here = True
    assert tracker.drain() == []
    assert tracker.num_consecutive_skips == 0
    first.is_here = True
    assert [record.step for record in tracker.drain()] == [0, 1]
    assert tracker.num_consecutive_skips == 2


def test_waiting_reads_everything():
    tracker = OverflowTracker()
    for step in range(3):
        push(tracker, step, step != 1, flag=LateFlag(step != 1))
    assert [record.step for record in tracker.drain(wait=True)] == [0, 2]
    assert tracker.num_consecutive_skips == 1


def test_clean_entries_are_dropped_without_a_drain_and_the_queue_is_bounded():
    tracker = OverflowTracker()
    for step in range(1003):
        push(tracker, step, False)
    assert len(tracker._queue) == 0
    flags = [LateFlag(False) for _ in range(103)]
    for step, flag in enumerate(flags):
        push(tracker, step, False, flag=flag)
        assert len(tracker._queue) <= 64
    assert [flag.is_here for flag in flags] == [True] * 39 + [False] * 64


def test_clean_steps_never_wait():
    tracker = OverflowTracker()
    with NoSync():
        for step in range(13):
            push(tracker, step, False, flag=LateFlag(False))
            assert tracker.drain() == []
    assert tracker.drain(wait=True) == []


def test_skipped_steps_wait_only_for_the_drain():
    tracker = OverflowTracker()
    flag = LateFlag(True)
    push(tracker, 0, True, flag=flag)
    flag.read()
    with NoSync():
        push(tracker, 1, False, flag=LateFlag(False))
    assert [record.step for record in tracker.drain()] == [0]


def collapse(tracker: OverflowTracker, steps: range, **kwargs: Any) -> list[OverflowRecord]:
    records = []
    for step in steps:
        push(tracker, step, True, **kwargs)
        records += tracker.drain()
    return records


def test_collapse_warns_once_per_run():
    tracker = OverflowTracker()
    push(tracker, 0, True, finite=(False, True, True))
    push(tracker, 1, False)
    push(tracker, 2, True, finite=(True, False, False), new_scale=32.0)
    collapse(tracker, range(3, 26), finite=(False, False, False), new_scale=0.5)
    push(tracker, 26, True, finite=(False, False, False), new_scale=0.25)
    message = (
        r"^25 optimizer steps in a row were skipped because of inf or NaN gradients \(optimizer 0, "
        r"steps 2 to 26\); the loss scale is now 0.25; the first parameter that overflowed is "
        r"'conv.bias'; lower the learning rate, check .*NaN, clip .*bfloat16 \('O2-bf16'\)$"
    )
    with pytest.warns(LossScaleCollapseWarning, match=message) as caught:
        records = tracker.drain()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert [record.step for record in records] == [26]
    assert tracker.num_consecutive_skips == 25
    assert len(collapse(tracker, range(27, 3027))) == 3000
    assert tracker.num_consecutive_skips == 3025


def test_a_good_step_re_arms_the_warning():
    tracker = OverflowTracker(warn_after=3)
    for first in (0, 10):
        collapse(tracker, range(first, first + 2))
        with pytest.warns(LossScaleCollapseWarning, match=rf"steps {first} to {first + 2}\)"):
            collapse(tracker, range(first + 2, first + 5))
        push(tracker, first + 5, False)
        assert tracker.num_consecutive_skips == 0


def test_a_run_that_ended_before_the_drain_still_warns():
    tracker = OverflowTracker(warn_after=2)
    for step, skipped in enumerate([True, True, False]):
        push(tracker, step, skipped)
    with pytest.warns(LossScaleCollapseWarning, match=r"steps 0 to 1\)"):
        assert len(tracker.drain()) == 2


def test_records_survive_a_warning_that_is_an_error():
    tracker = OverflowTracker(warn_after=2)
    push(tracker, 0, True)
    push(tracker, 1, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LossScaleCollapseWarning):
            tracker.drain()
        assert [record.step for record in tracker.drain()] == [0, 1]


def test_an_optimizer_that_never_steps_is_noticed_beside_one_that_does():
    tracker = OverflowTracker(warn_after=3)
    for step in range(5):
        push(tracker, step, False, index=0)
        push(tracker, step, True, index=1)
    with pytest.warns(LossScaleCollapseWarning, match="optimizer 1, steps 0 to 2"):
        assert len(tracker.drain()) == 5
    assert tracker.num_consecutive_skips == 5


def test_optimizers_that_collapse_together_warn_once():
    tracker = OverflowTracker(warn_after=3)
    for step in range(3):
        push(tracker, step, True, index=0)
        push(tracker, step, True, index=1)
        if step < 2:
            tracker.drain()
    with pytest.warns(LossScaleCollapseWarning, match="optimizer 0") as caught:
        assert len(tracker.drain()) == 2
    assert len(caught) == 1
    push(tracker, 3, True, index=0)
    push(tracker, 3, True, index=1)
    assert len(tracker.drain()) == 2


def test_an_overflow_of_another_rank_has_no_names():
    tracker = OverflowTracker(warn_after=1)
    push(tracker, 0, True, finite=ALL_FINITE)
    with pytest.warns(LossScaleCollapseWarning, match="overflowed is none of this rank's;"):
        (record,) = tracker.drain()
    assert record.parameter_names == ()


@pytest.mark.parametrize("warn_after", [0, -1, 2.5, True, None])
def test_bad_warn_after(warn_after):
    with pytest.raises(ValueError, match=r"warn_after = .*; allowed is an int of at least 1; 25"):
        OverflowTracker(warn_after)


@pytest.mark.parametrize("shape", [(2,), (4,), (), (3, 1)])
def test_a_refused_push_changes_nothing(shape):
    tracker = OverflowTracker()
    flags = torch.zeros(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"finite_flags has shape .* for 3 names; one flag per"):
        tracker.push(0, 0, HostFlag(torch.tensor(1.0)), torch.tensor(64.0), flags, NAMES)
    assert tracker.drain() == []
    assert tracker.num_skipped_steps == 0

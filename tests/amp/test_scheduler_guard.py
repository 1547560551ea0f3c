"""Schedulers hold while their optimizer skips, and are ordinary otherwise."""

import copy
import math
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from support.engine import Mlp, make_engine, set_gradients
from torch.optim import SGD
from torch.optim import lr_scheduler as schedulers

from lightning_mp.amp.scheduler_guard import SchedulerGuard
from lightning_mp.amp.skip_ledger import SkipLedger


def sequential(optimizer: Any) -> Any:
    parts = [
        schedulers.LinearLR(optimizer, 0.1, total_iters=3),
        schedulers.ExponentialLR(optimizer, 0.9),
    ]
    return schedulers.SequentialLR(optimizer, parts, milestones=[3])


SCHEDULERS: dict[str, Any] = {
    "StepLR": partial(schedulers.StepLR, step_size=1, gamma=0.5),
    "ExponentialLR": partial(schedulers.ExponentialLR, gamma=0.9),
    "CosineAnnealingLR": partial(schedulers.CosineAnnealingLR, T_max=7),
    "OneCycleLR": partial(schedulers.OneCycleLR, max_lr=0.1, total_steps=20),
    "SequentialLR": sequential,
    "ChainedScheduler": lambda optimizer: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(optimizer, 0.9), schedulers.StepLR(optimizer, 1)]
    ),
    "LambdaLR": partial(schedulers.LambdaLR, lr_lambda=math.exp),
}


def make(name: str) -> Any:
    model = Mlp()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    engine.attach([optimizer])
    scheduler = SCHEDULERS[name](optimizer)
    return model, engine, optimizer, scheduler


def step(model: Any, engine: Any, optimizer: Any, *, overflows: bool) -> None:
    set_gradients(model, math.inf if overflows else 0.1)
    engine.step(optimizer)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("pattern", ["..x.x.", "xx...", "....", "x"])
def test_rates_move_on_good_steps_only(name: str, pattern: str) -> None:
    """A warning of torch (step order) would fail this test."""
    model, engine, optimizer, scheduler = make(name)
    engine.guard_scheduler(scheduler, optimizer)
    plain = SGD(Mlp().parameters(), lr=0.01, momentum=0.9)
    reference = SCHEDULERS[name](plain)
    for mark in pattern:
        step(model, engine, optimizer, overflows=mark == "x")
        scheduler.step()
        if mark == ".":
            plain.step()
            reference.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("marks", "moves"), [("x.x", True), ("xxx", False), ("", True), ("x.", True)]
)
def test_a_scheduler_per_epoch_holds_only_if_nothing_stepped(marks: str, moves: bool) -> None:
    model, engine, optimizer, scheduler = make("StepLR")
    engine.guard_scheduler(scheduler, optimizer)
    step(model, engine, optimizer, overflows=False)
    scheduler.step()
    for mark in marks:
        step(model, engine, optimizer, overflows=mark == "x")
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == (0.0025 if moves else 0.005)


def test_plateau_schedulers_get_their_metric() -> None:
    model, engine, optimizer, _ = make("StepLR")
    scheduler = schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    engine.guard_scheduler(scheduler, optimizer)
    for overflows, expected in ((False, 0.01), (True, 0.01), (False, 0.005)):
        step(model, engine, optimizer, overflows=overflows)
        scheduler.step(metrics=1.0)
        assert optimizer.param_groups[0]["lr"] == expected


@pytest.mark.parametrize("name", [key for key in SCHEDULERS if key != "LambdaLR"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_guard_shows_nowhere(name: str, protocol: int) -> None:
    model, engine, optimizer, scheduler = make(name)
    cls, state = type(scheduler), copy.deepcopy(scheduler.state_dict())
    engine.guard_scheduler(scheduler, optimizer)
    assert isinstance(scheduler, cls)
    assert type(scheduler).__name__ == cls.__name__
    assert scheduler.state_dict().keys() == state.keys()
    step(model, engine, optimizer, overflows=False)
    scheduler.step()
    copies = [copy.deepcopy(scheduler)]
    if name != "SequentialLR":
        copies.append(pickle.loads(pickle.dumps(scheduler, protocol)))
    for twin in copies:
        assert type(twin) is cls
        assert twin.get_last_lr() == scheduler.get_last_lr()
    engine.restore()
    assert type(scheduler) is cls


def test_guarding_twice_is_undone() -> None:
    _, engine, optimizer, scheduler = make("StepLR")
    engine.guard_scheduler(scheduler, optimizer)
    engine.guard_scheduler(scheduler, optimizer)
    engine.restore()
    assert type(scheduler) is schedulers.StepLR


def test_a_scheduler_of_a_stranger_is_left_alone() -> None:
    _, engine, _, _ = make("StepLR")
    stranger = SGD(Mlp().parameters(), lr=0.1)
    scheduler = schedulers.StepLR(stranger, 1)
    engine.guard_scheduler(scheduler, stranger)
    assert type(scheduler) is schedulers.StepLR


class OwnReduce(schedulers.StepLR):
    """A scheduler that says itself how it is copied."""

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.optimizer, self.last_epoch))


def _rebuild(cls: Any, optimizer: Any, epoch: int) -> Any:
    scheduler = cls(optimizer, 1)
    scheduler.last_epoch = epoch
    return scheduler


def test_own_ways_of_copying_are_kept() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = OwnReduce(optimizer, 1)
    guard = SchedulerGuard(scheduler, SkipLedger())
    twin = copy.copy(scheduler)
    assert type(twin) is OwnReduce
    guard.remove()
    assert type(scheduler) is OwnReduce

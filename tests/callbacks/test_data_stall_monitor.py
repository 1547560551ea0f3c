"""Waits are measured on a clock that the test turns."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import SimpleProfiler
from support.training import SmallGAN, SmallModule, ValidatedModule, make_loader, make_trainer
from torch.utils.data import DataLoader, Dataset

from lightning_mp.callbacks import DataStallMonitor, stall_clock
from lightning_mp.callbacks.data_stall_monitor import loader_advice
from lightning_mp.callbacks.stall_clock import StallClock, StallReport

NAMES = ("wait_seconds", "wait_fraction", "epoch_start_seconds")


@pytest.fixture
def clock(monkeypatch):
    """The time; work and waits move it."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(stall_clock, "time", clock)
    return clock


class Slow(Dataset):
    """Each sample takes 3 seconds to load."""

    def __init__(self, clock, num_samples=8):
        self.clock, self.num_samples = clock, num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        if index == self.num_samples:
            raise IndexError
        self.clock.now += 3
        return torch.full((13,), float(index)), torch.ones(3)


class Working(Callback):
    """Each batch takes 9 seconds of work, each validation an hour."""

    def __init__(self, clock):
        self.clock, self.logged = clock, []

    def on_validation_epoch_start(self, trainer, pl_module):
        self.clock.now += 3600

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.clock.now += 9
        found = {
            name: trainer.callback_metrics.get(f"lightning_mp/data_stall/{name}") for name in NAMES
        }
        self.logged.append(
            {name: float(value) for name, value in found.items() if value is not None}
        )


def fit(tmp_path, clock, module=None, monitor=None, **kwargs):
    monitor = monitor or DataStallMonitor(every_n_steps=2, max_wait_fraction=1.0)
    working = Working(clock)
    trainer = make_trainer(tmp_path, callbacks=[working, monitor], **kwargs)
    loader = DataLoader(Slow(clock), batch_size=1)
    module = module or SmallModule()
    if isinstance(module, ValidatedModule):
        trainer.fit(module, loader, make_loader(num_samples=7))
    else:
        trainer.fit(module, loader)
    return working.logged, trainer


@pytest.mark.parametrize("module", [SmallModule, SmallGAN, ValidatedModule])
def test_waits_are_told_from_work(tmp_path, clock, module):
    logged, _ = fit(tmp_path, clock, module(), max_epochs=2, val_check_interval=2)
    assert logged[0] == {"epoch_start_seconds": 3.0}
    # The wait for the first batch of an epoch is told apart: one wait for two batches of work.
    assert logged[2] == {"wait_seconds": 1.5, "wait_fraction": pytest.approx(1 / 7), **logged[0]}
    assert logged[-1]["wait_seconds"] == 3.0
    assert logged[-1]["wait_fraction"] == pytest.approx(3 / 12)


@pytest.mark.parametrize("limit", [0.2, 0.3])
def test_warning_comes_once_and_only_above_the_limit(tmp_path, clock, limit, recwarn):
    fit(tmp_path, clock, monitor=DataStallMonitor(2, max_wait_fraction=limit), max_epochs=2)
    messages = [str(item.message) for item in recwarn]
    found = [text for text in messages if text.startswith("the training waits for its data")]
    if limit == 0.3:
        assert found == []
        return
    assert len(found) == 1
    assert "25 % of the time (3 s per batch). Try num_workers=2 or more" in found[0]


def test_profiler_of_the_user_works_and_is_as_before(tmp_path, clock):
    profiler = SimpleProfiler()
    fit(tmp_path, clock, profiler=profiler)
    assert "[_TrainingEpochLoop].train_dataloader_next" in profiler.recorded_durations
    assert not {"start", "stop"} & set(vars(profiler))


def test_profiler_is_as_before_after_an_exception(tmp_path, clock):
    class Fails(SmallModule):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    trainer = make_trainer(tmp_path, callbacks=[DataStallMonitor()])
    with pytest.raises(KeyError, match="mine"):
        trainer.fit(Fails(), make_loader())
    assert not {"start", "stop"} & set(vars(trainer.profiler))


def test_plain_loop(clock):
    watch = StallClock()
    for _ in watch.watch(Slow(clock, 3)):
        clock.now += 1
    assert watch.take() == StallReport(3, 3.0, 4.0)
    assert watch.take() == StallReport(0, 0.0, 0.0)
    assert watch.take().wait_fraction == 0.0


def test_pauses_and_waits_in_them_are_left_out(clock):
    watch = StallClock()
    watch.begin_pause()
    watch.begin_pause()
    watch.begin_wait()
    clock.now += 5
    watch.end_wait()
    assert watch.end_pause() == 5.0
    assert watch.end_pause() == 0.0
    clock.now += 2
    assert watch.take() == StallReport(0, 0.0, 2.0)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, ["num_workers=2 or more", "persistent_workers=True"]),
        ({"num_workers": 2}, ["num_workers=4", "persistent_workers=True", "prefetch_factor=4"]),
        (
            {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 8},
            ["num_workers=2", "prefetch_factor=16"],
        ),
    ],
)
def test_advice_follows_the_loader(monkeypatch, options, advice):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert loader_advice(DataLoader([1], **options)) == advice
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert loader_advice(DataLoader([1], **options)) == [*advice, "pin_memory=True"]


def test_advice_of_another_loader():
    assert loader_advice(["a batch"]) == ["several workers in the loader"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps = 0; allowed is an int of at least 1"),
        ({"max_wait_fraction": 0}, "max_wait_fraction = 0; allowed is a number above 0 and up to"),
        ({"max_wait_fraction": 1.1}, r"max_wait_fraction = 1\.1"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        DataStallMonitor(**kwargs)

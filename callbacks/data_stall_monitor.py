"""Tell how long a training waits for its data, and what to do about it."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_count, require_number
from lightning_mp.callbacks.stall_clock import StallClock
from lightning_mp.lightning_api import Callback, LightningModule, Trainer, rank_zero_warn
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["DataStallMonitor", "loader_advice"]

_FETCH = "[_TrainingEpochLoop].train_dataloader_next"


def loader_advice(loader: Any) -> list[str]:
    """List settings of a loader that may shorten the waits, the most promising first.

    Args:
        loader: A torch ``DataLoader``; of anything else nothing is known.

    Returns:
        Settings as they are to be written.

    Example:
        >>> loader_advice(DataLoader([1, 2, 3]))
        ['num_workers=2 or more', 'persistent_workers=True']
    """
    if not isinstance(loader, DataLoader):
        return ["several workers in the loader"]
    if loader.num_workers == 0:
        advice = ["num_workers=2 or more", "persistent_workers=True"]
    else:
        advice = [f"num_workers={2 * loader.num_workers}"]
        advice += [] if loader.persistent_workers else ["persistent_workers=True"]
        advice += [f"prefetch_factor={2 * (loader.prefetch_factor or 2)}"]
    is_pinning = loader.pin_memory or not torch.accelerator.is_available()
    return advice if is_pinning else [*advice, "pin_memory=True"]


class DataStallMonitor(Callback):
    """Measure how long the training loop waits for batches.

    The clock is the host's: on an accelerator that is still busy with earlier steps a wait may cost
    nothing. Of several ranks the slowest counts. Validation is left out, and so is the wait for an
    epoch's first batch, which is told apart.

    Logged every ``every_n_steps`` batches: ``lightning_mp/data_stall/wait_seconds`` per batch and
    ``lightning_mp/data_stall/wait_fraction``, the share of the time; once an epoch
    ``lightning_mp/data_stall/epoch_start_seconds``, until its first batch is there.

    Args:
        every_n_steps: Number of batches that are measured together, at least 1.
        max_wait_fraction: Share of the time above which the run warns, once, above 0 and up to 1.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> DataStallMonitor(max_wait_fraction=0.2).max_wait_fraction
        0.2
    """

    def __init__(self, every_n_steps: int = 50, max_wait_fraction: float = 0.1) -> None:
        require_count("every_n_steps", every_n_steps)
        require_number("max_wait_fraction", max_wait_fraction, above=0, at_most=1)
        self.every_n_steps = every_n_steps
        self.max_wait_fraction = max_wait_fraction
        self._clock = StallClock()
        self._num_batches = 0
        self._has_warned = False
        self._profiler: Any = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="DataStallMonitor")
        if stage == "fit":
            self._has_warned = False
            self._install(trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._remove()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Lightning calls no teardown after an exception.
        self._remove()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock, self._num_batches = StallClock(), 0

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.begin_pause()

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        seconds = self._clock.end_pause()
        if seconds:
            slowest = _largest(trainer, [seconds])
            _log(trainer, pl_module, epoch_start_seconds=slowest[0])

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._clock.count_batch()
        self._num_batches += 1
        if self._num_batches % self.every_n_steps:
            return
        report = self._clock.take()
        seconds, fraction = _largest(trainer, [report.wait_seconds, report.wait_fraction])
        _log(trainer, pl_module, wait_seconds=seconds, wait_fraction=fraction)
        if fraction > self.max_wait_fraction and not self._has_warned:
            self._has_warned = True
            settings = [
                setting
                for loader in tree_leaves(trainer.train_dataloader)
                for setting in loader_advice(loader)
            ]
            rank_zero_warn(
                f"the training waits for its data {100 * fraction:.0f} % of the time "
                f"({seconds:.2g} s per batch). Try {', '.join(dict.fromkeys(settings))}; "
                "or do less work per sample, such as decoding ahead of time."
            )

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.begin_pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.end_pause()

    def _install(self, trainer: Trainer) -> None:
        self._profiler = profiler = trainer.profiler  # type: ignore[attr-defined] (set by a connector)
        start, stop = profiler.start, profiler.stop

        def start_action(action_name: str) -> None:
            if action_name == _FETCH:
                self._clock.begin_wait()
            start(action_name)

        def stop_action(action_name: str) -> None:
            stop(action_name)
            if action_name == _FETCH:
                self._clock.end_wait()

        profiler.start, profiler.stop = start_action, stop_action

    def _remove(self) -> None:
        if self._profiler is not None:
            del self._profiler.start, self._profiler.stop
            self._profiler = None


def _largest(trainer: Trainer, values: list[float]) -> list[float]:
    if trainer.world_size == 1:
        return values
    mine: Any = torch.tensor(values, device=trainer.strategy.root_device)
    return trainer.strategy.reduce(mine, reduce_op="max").tolist()


def _log(trainer: Trainer, pl_module: LightningModule, **values: float) -> None:
    for name, value in values.items():
        if not trainer.barebones:
            pl_module.log(
                f"lightning_mp/data_stall/{name}", torch.tensor(value), on_step=True, on_epoch=False
            )

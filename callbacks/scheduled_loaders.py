"""Run the training loaders of a Trainer on a batch-size schedule."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from lightning_mp.callbacks.batch_size_checks import check_equal_shares, check_loader
from lightning_mp.callbacks.batch_size_plan import planned_steps
from lightning_mp.callbacks.epoch_limits import (
    count_batches,
    count_cycle_batches,
    count_epochs,
    find_leader,
    list_batch_samplers,
    refresh_limits,
    restart_iterator,
    settle_restored_progress,
    show_total,
)
from lightning_mp.callbacks.run_position import RunPosition
from lightning_mp.callbacks.scheduled_batch_sampler import ScheduledBatchSampler
from lightning_mp.callbacks.train_loader_hook import TrainLoaderHook
from lightning_mp.lightning_api import Trainer, rank_zero_info

__all__ = ["ScheduledLoaders"]


class ScheduledLoaders:
    """Keeps batch samplers, the Trainer's limits and the position in the run together.

    Args:
        trainer: Trainer whose training loaders are scheduled.
        schedule: Maps consumed samples over all ranks to the global batch size, each a multiple
            of the world size.
        seed: Seed of the epochs' orders.
        owner: Class of the callback, named in messages.
    """

    def __init__(
        self, trainer: Trainer, schedule: Callable[[int], int], *, seed: int, owner: type
    ) -> None:
        self.trainer = trainer
        self.schedule = schedule
        self.seed = seed
        self.run = RunPosition(partial(count_batches, trainer))
        self._owner = owner
        self._hook = TrainLoaderHook(trainer, self._make_batch_sampler, self._place_batch_sampler)
        self._is_iterator_unused = False
        self._reported_batch_sizes: set[int] = set()
        self._muted = ExitStack()

    def install(self) -> None:
        """Take over the batch samplers of the loaders that the Trainer sets up from now on."""
        self._hook.install()

    def remove(self) -> None:
        """Give everything back; the position in the run is kept."""
        self.unmute()
        self._hook.remove()

    def unmute(self) -> None:
        """Let Lightning's warning about resuming through again."""
        self._muted.close()

    def planned_steps(self, constant_from: int | None = None) -> int | float:
        """Count the optimizer steps of the whole run; loads the training data if needed.

        Args:
            constant_from: Consumed samples from which the schedule is constant, if known.

        Returns:
            Steps from the first sample of the run (not from a resume), ``inf`` without a limit.

        Raises:
            ValueError: An epoch would have no batch.
        """
        trainer = self.trainer
        if trainer.max_epochs == -1:
            return float("inf") if trainer.max_steps == -1 else trainer.max_steps
        if trainer.fit_loop._combined_loader is None:
            trainer.fit_loop.setup_data()
        leader = find_leader(trainer)
        num_steps = planned_steps(
            self.schedule,
            num_epochs=trainer.max_epochs or 0,
            num_epoch_samples=leader.num_samples_per_pass * trainer.world_size,
            drop_last=leader.drop_last,
            limit=trainer.limit_train_batches or 0,
            constant_from=constant_from,
        )
        return num_steps if trainer.max_steps == -1 else min(num_steps, trainer.max_steps)

    def _make_batch_sampler(self, loader: Any) -> ScheduledBatchSampler:
        check_loader(loader, self._owner)
        trainer, original = self.trainer, loader.batch_sampler
        check_equal_shares(trainer, len(original.sampler))
        num_epoch_samples = len(original.sampler) * trainer.world_size
        # Raises where not even the first epoch has a batch: Lightning would end the fit silently.
        planned_steps(
            self.schedule,
            num_epochs=1,
            num_epoch_samples=num_epoch_samples,
            drop_last=original.drop_last,
        )
        self._report_batch_size(original.batch_size)
        return ScheduledBatchSampler(
            original.sampler,
            self.schedule,
            world_size=trainer.world_size,
            rank=trainer.global_rank,
            drop_last=original.drop_last,
            seed=self.seed,
            num_batches=partial(count_cycle_batches, trainer),
            on_epoch=self._begin_epoch,
        )

    def _place_batch_sampler(self, batch_sampler: ScheduledBatchSampler) -> None:
        # The iterator, and with workers the prefetching, starts right after the loading, long
        # before the epoch is announced.
        batch_sampler.start_epoch(self.run.expect_epoch(count_epochs(self.trainer)))
        self._is_iterator_unused = True

    def _begin_epoch(self, epoch: int) -> None:
        trainer, run = self.trainer, self.run
        is_resuming, expected = run.is_restored, run.epoch
        if not run.begin_epoch(epoch):
            return
        for batch_sampler in list_batch_samplers(trainer):
            batch_sampler.start_epoch(run.epoch)
        leader = find_leader(trainer)
        run.plan_epoch(
            [size * trainer.world_size for size in leader.batch_sizes()],
            num_batches=refresh_limits(trainer),
            num_epoch_samples=leader.num_samples_per_pass * trainer.world_size,
        )
        if is_resuming:
            self._resume_loop(epoch)
        if self._is_iterator_unused and run.epoch != expected:
            restart_iterator(trainer)
        self._is_iterator_unused = False

    def _resume_loop(self, epoch: int) -> None:
        settle_restored_progress(self.trainer)
        show_total(self.trainer, epoch)
        # Lightning takes any loader without a state for one that repeats batches; not this one.
        self._muted.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended")

    def _report_batch_size(self, batch_size: int) -> None:
        if batch_size in self._reported_batch_sizes:
            return
        self._reported_batch_sizes.add(batch_size)
        rank_zero_info(
            f"{self._owner.__name__} overrides DataLoader(batch_size={batch_size}): the global "
            f"batch starts with {self.schedule(0)} samples."
        )

"""Grow the global batch size while training.

Megatron-LM's batch-size ramp-up for the Lightning Trainer: small, noisy batches at the start, large
ones later (Smith et al., "Don't Decay the Learning Rate, Increase the Batch Size", 2018). The size
changes at any step, not only between epochs, each sample of an epoch is still seen exactly once,
and a run resumed in mid-epoch continues bit-equal.
"""

import os
import warnings
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_mp.callbacks.batch_size_checks import (
    check_equal_shares,
    check_loader,
    check_trainer,
    warn_no_learning_rate_rule,
    warn_stale_schedulers,
)
from lightning_mp.callbacks.batch_size_plan import (
    BatchSizeRamp,
    check_world_size,
    planned_steps,
)
from lightning_mp.callbacks.epoch_limits import (
    count_batches,
    count_cycle_batches,
    count_epochs,
    find_leader,
    list_batch_samplers,
    refresh_limits,
    restart_iterator,
    settle_restored_progress,
)
from lightning_mp.callbacks.run_position import RunPosition
from lightning_mp.callbacks.scheduled_batch_sampler import ScheduledBatchSampler
from lightning_mp.callbacks.train_loader_hook import TrainLoaderHook

__all__ = ["BatchSizeWarmup"]


class BatchSizeWarmup(Callback):
    """Grows the global batch size from a start to an end over a number of consumed samples.

    All counts are in samples over all ranks; each rank takes its equal share. The training
    loaders' own ``batch_size`` is overridden, their samplers are kept. Shuffling is seeded by
    ``seed``, ``seed_everything`` and the epoch, so that a resumed run sees the order it would have
    seen. A data set that the ranks cannot share evenly is padded by ``DistributedSampler``.

    Several loaders in a ``CombinedLoader`` take the same size at each step. The one with the most
    batches (the fewest in mode ``min_size``) sets the length of the epoch, and its samples are
    the ones that count.

    Each epoch's number of batches, and with it progress bars, ``limit_train_batches`` and a
    fractional ``val_check_interval``, follow the growing batch. An int ``val_check_interval``
    longer than an epoch validates at that epoch's end.

    Logged at each step: ``lightning_mp/batch_size/global`` and
    ``lightning_mp/batch_size/samples_seen``, both in samples over all ranks.

    Args:
        start_global_batch_size: Size of the first batch, >= 1, a multiple of the world size.
        end_global_batch_size: Size after the warm-up, >= the start, a multiple of the world size.
        num_samples: Consumed samples over which the size grows, >= 1.
        increment: Samples added per stage; divides the growth. None: the world size, which is as
            fine as the ranks allow. A larger one gives fewer distinct batch shapes, which matters
            to compiled models and to cuDNN's benchmark mode.
        seed: Seed of the shuffling, added to the one of ``seed_everything``.

    Raises:
        TypeError: A count is not an integer.
        ValueError: A count is out of range, the end is smaller than the start, or the increment
            does not divide the growth.

    Example:
        >>> warmup = BatchSizeWarmup(16, 256, num_samples=12_000)
        >>> # Trainer(callbacks=[warmup]); in configure_optimizers:
        >>> # OneCycleLR(optimizer, max_lr, total_steps=warmup.planned_steps(self.trainer))
    """

    def __init__(
        self,
        start_global_batch_size: int,
        end_global_batch_size: int,
        num_samples: int,
        *,
        increment: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed = {seed!r}; an integer is needed; pass an int")
        self.ramp = BatchSizeRamp(
            start_global_batch_size,
            end_global_batch_size,
            num_samples,
            1 if increment is None else increment,
        )
        self._increment = increment
        self._seed = seed
        self._order_seed = seed
        self._world_size = 1
        self._trainer: Trainer | None = None
        self._run: RunPosition | None = None
        self._hook: TrainLoaderHook[ScheduledBatchSampler] | None = None
        self._is_iterator_unused = False
        self._reported_batch_sizes: set[int] = set()
        self._muted = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings and take over the training loaders' batch samplers."""
        if stage != "fit":
            return
        check_trainer(trainer, pl_module, type(self))
        self.ramp = self._share_ramp(trainer.world_size)
        self._world_size = trainer.world_size
        self._order_seed = self._seed + int(os.environ.get("PL_GLOBAL_SEED", "0"))
        if self._run is None or trainer.fit_loop.epoch_progress.total.ready == 0:
            self._run = RunPosition(partial(count_batches, trainer))
        self._trainer = trainer
        self._hook = TrainLoaderHook(trainer, self._make_batch_sampler, self._place_batch_sampler)
        self._hook.install()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo what `setup` did."""
        self._release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Undo what `setup` did: Lightning calls no teardown after an exception."""
        self._release()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn when no learning-rate rule goes with the growing batch."""
        warn_no_learning_rate_rule(
            trainer, self.ramp.start_global_batch_size, self.ramp.end_global_batch_size
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Plan the whole run, so that an impossible epoch or a stale schedule shows at once."""
        warn_stale_schedulers(trainer, self.planned_steps(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let Lightning's warnings about resuming through again."""
        self._muted.close()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the batch's global size and the samples seen, from the plan."""
        if trainer.barebones or self._run is None:
            return
        values = {
            "global": self._run.last_batch_size,
            "samples_seen": self._run.num_samples_seen,
        }
        for name, value in values.items():
            # A float64 tensor on the host: exact beyond 2**24 samples, and nothing is copied.
            pl_module.log(
                f"lightning_mp/batch_size/{name}",
                torch.tensor(value, dtype=torch.float64),
                on_step=True,
                on_epoch=False,
            )

    @property
    def num_samples_seen(self) -> int:
        """Samples over all ranks in the batches trained so far, over the whole run."""
        return 0 if self._run is None else self._run.num_samples_seen

    def planned_steps(self, trainer: Trainer) -> int | float:
        """Count the optimizer steps of the whole run, as a learning-rate schedule needs them.

        Unlike ``trainer.estimated_stepping_batches`` it knows that later epochs have fewer
        batches. May be called in ``configure_optimizers``; loads the training data if needed.

        Args:
            trainer: Trainer this callback belongs to.

        Returns:
            Steps from the first sample of the run (not from a resume), ``inf`` without a limit.

        Raises:
            RuntimeError: The Trainer is not fitting with this callback.
            ValueError: An epoch would have no batch.
        """
        if self._hook is None:
            raise RuntimeError(
                "planned_steps was called outside of fit; the data must be known; call it in "
                "configure_optimizers or later"
            )
        if trainer.max_epochs == -1:
            return float("inf") if trainer.max_steps == -1 else trainer.max_steps
        if trainer.fit_loop._combined_loader is None:
            trainer.fit_loop.setup_data()
        leader = find_leader(trainer)
        num_steps = planned_steps(
            self.ramp,
            num_epochs=trainer.max_epochs or 0,
            num_epoch_samples=leader.num_samples_per_pass * self._world_size,
            drop_last=leader.drop_last,
            limit=trainer.limit_train_batches or 0,
            constant_from=self.ramp.num_samples,
        )
        return num_steps if trainer.max_steps == -1 else min(num_steps, trainer.max_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule and the position in the run, counted in trained batches."""
        if self._run is None:
            return {}
        return {
            "schedule": self._describe_schedule(),
            "seed": self._order_seed,
            "position": self._run.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position; the schedule must be the checkpoint's.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            ValueError: The checkpoint was written with another schedule or world size.
        """
        saved, current = state_dict["schedule"], self._describe_schedule()
        if saved != current:
            raise ValueError(
                f"BatchSizeWarmup schedule = {current}; the checkpoint was written with {saved}, "
                "and a resumed run must keep its schedule and world size; use the checkpoint's, or "
                "load only its weights"
            )
        self._order_seed = state_dict["seed"]
        if self._run is not None:
            self._run.load_state_dict(state_dict["position"])

    def _share_ramp(self, world_size: int) -> BatchSizeRamp:
        ramp = self.ramp
        sizes = {
            "start_global_batch_size": ramp.start_global_batch_size,
            "end_global_batch_size": ramp.end_global_batch_size,
        }
        if self._increment is not None:
            sizes["increment"] = self._increment
        check_world_size(world_size, **sizes)
        return BatchSizeRamp(
            ramp.start_global_batch_size,
            ramp.end_global_batch_size,
            ramp.num_samples,
            self._increment or world_size,
        )

    def _describe_schedule(self) -> dict[str, int]:
        return {**vars(self.ramp), "world_size": self._world_size}

    def _make_batch_sampler(self, loader: Any) -> ScheduledBatchSampler:
        check_loader(loader, type(self))
        trainer, sampler = self._fitting_trainer(), loader.batch_sampler.sampler
        check_equal_shares(trainer, len(sampler))
        self._report_batch_size(loader.batch_sampler.batch_size)
        return ScheduledBatchSampler(
            sampler,
            self.ramp,
            world_size=self._world_size,
            rank=trainer.global_rank,
            drop_last=loader.batch_sampler.drop_last,
            seed=self._order_seed,
            num_batches=partial(count_cycle_batches, trainer),
            on_epoch=self._begin_epoch,
        )

    def _place_batch_sampler(self, batch_sampler: ScheduledBatchSampler) -> None:
        # The iterator, and with workers the prefetching, starts right after the loading, long
        # before the epoch is announced.
        assert self._run is not None
        epoch = count_epochs(self._fitting_trainer())
        batch_sampler.start_epoch(self._run.expect_epoch(epoch))
        self._is_iterator_unused = True

    def _begin_epoch(self, epoch: int) -> None:
        assert self._run is not None
        trainer, run = self._fitting_trainer(), self._run
        is_resuming, expected = run.is_restored, run.epoch
        if not run.begin_epoch(epoch):
            return
        if is_resuming:
            settle_restored_progress(trainer)
            self._mute_resume_warning()
        for batch_sampler in list_batch_samplers(trainer):
            batch_sampler.start_epoch(run.epoch)
        leader = find_leader(trainer)
        run.plan_epoch(
            [size * self._world_size for size in leader.batch_sizes()],
            num_batches=refresh_limits(trainer),
            num_epoch_samples=leader.num_samples_per_pass * self._world_size,
        )
        if self._is_iterator_unused and run.epoch != expected:
            restart_iterator(trainer)
        self._is_iterator_unused = False

    def _mute_resume_warning(self) -> None:
        # Lightning takes any loader without a state for one that repeats batches; not this one.
        self._muted.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended")

    def _report_batch_size(self, batch_size: int) -> None:
        if batch_size in self._reported_batch_sizes:
            return
        self._reported_batch_sizes.add(batch_size)
        rank_zero_info(
            f"BatchSizeWarmup overrides DataLoader(batch_size={batch_size}): the global batch "
            f"grows from {self.ramp.start_global_batch_size} to {self.ramp.end_global_batch_size} "
            f"samples over the first {self.ramp.num_samples} samples."
        )

    def _fitting_trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError(
                "BatchSizeWarmup is not fitting; its batch samplers belong to one fit; load the "
                "data again"
            )
        return self._trainer

    def _release(self) -> None:
        self._muted.close()
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._trainer = None

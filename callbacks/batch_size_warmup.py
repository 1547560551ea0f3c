"""Grow the global batch size while training.

Megatron-LM's batch-size ramp-up for the Lightning Trainer: small, noisy batches at the start, large
ones later (Smith et al., "Don't Decay the Learning Rate, Increase the Batch Size", 2018). The size
changes at any step, not only between epochs, each sample of an epoch is still seen exactly once,
and a run resumed in mid-epoch continues bit-equal.
"""

import os
from typing import Any

import torch

from lightning_mp.callbacks.batch_size_checks import (
    check_trainer,
    warn_no_learning_rate_rule,
    warn_stale_schedulers,
)
from lightning_mp.callbacks.batch_size_plan import BatchSizeRamp, check_world_size
from lightning_mp.callbacks.scheduled_loaders import ScheduledLoaders
from lightning_mp.lightning_api import Callback, LightningModule, Trainer
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["BatchSizeWarmup"]


class BatchSizeWarmup(Callback):
    """Grows the global batch size from a start to an end over a number of consumed samples.

    All counts are in samples over all ranks; each rank takes its equal share. The training
    loaders' own ``batch_size`` is overridden, their samplers are kept. Their order is seeded by
    ``seed``, ``seed_everything`` and the epoch, so that a resumed run sees the order it would have
    seen. Under DDP, ``DistributedSampler`` shuffles with its own seed (that of
    ``seed_everything``, which a resuming process has to call alike) and pads data that the ranks
    cannot share evenly. A checkpoint written without this callback starts the warm-up at zero.

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
        self._world_size = 1
        self._loaders: ScheduledLoaders | None = None
        self._is_fitting = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings and take over the training loaders' batch samplers."""
        require_lightning_trainer(trainer, asked_by="BatchSizeWarmup")
        if stage != "fit":
            return
        check_trainer(trainer, pl_module, type(self))
        self.ramp = self._share_ramp(trainer.world_size)
        self._world_size = trainer.world_size
        loaders = self._loaders
        is_fresh = trainer.fit_loop.epoch_progress.total.ready == 0
        if loaders is None or loaders.trainer is not trainer or is_fresh:
            seed = self._seed + int(os.environ.get("PL_GLOBAL_SEED", "0"))
            self._loaders = ScheduledLoaders(trainer, self.ramp, seed=seed, owner=type(self))
        self._scheduled().install()
        self._is_fitting = True

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
        self._scheduled().unmute()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the batch's global size and the samples seen, from the plan."""
        if trainer.barebones:
            return
        run = self._scheduled().run
        values = {"global": run.last_batch_size, "samples_seen": run.num_samples_seen}
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
        return 0 if self._loaders is None else self._loaders.run.num_samples_seen

    @property
    def planned_global_batch_size(self) -> int:
        """Size of the batch that is trained now, or next, in samples over all ranks."""
        return self.ramp(self.num_samples_seen)

    @property
    def largest_global_batch_size(self) -> int:
        """Size after the warm-up, in samples over all ranks."""
        return self.ramp.end_global_batch_size

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
        if not self._is_fitting or self._scheduled().trainer is not trainer:
            raise RuntimeError(
                "planned_steps was called outside of fit; the data must be known; call it in "
                "configure_optimizers or later"
            )
        return self._scheduled().planned_steps(constant_from=self.ramp.num_samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule and the position in the run, counted in trained batches."""
        if self._loaders is None:
            return {}
        return {
            "schedule": self._describe_schedule(),
            "seed": self._loaders.seed,
            "position": self._loaders.run.state_dict(),
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
        if self._loaders is not None:
            self._loaders.seed = state_dict["seed"]
            self._loaders.run.load_state_dict(state_dict["position"])

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

    def _scheduled(self) -> ScheduledLoaders:
        if self._loaders is None:
            raise RuntimeError(
                "BatchSizeWarmup has no training data yet; its hooks run inside Trainer.fit; add "
                "it to Trainer(callbacks=[...])"
            )
        return self._loaders

    def _release(self) -> None:
        if self._is_fitting:
            self._scheduled().remove()
        self._is_fitting = False

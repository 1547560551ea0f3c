"""Validate after a number of samples, so that runs with different batch sizes can be compared."""

import sys
from typing import Any

import torch
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_count
from lightning_mp.callbacks.batch_size_source import (
    batch_length,
    find_batch_size_source,
    loader_batch_size,
)
from lightning_mp.lightning_api import Callback, LightningModule, Trainer
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["SampleIntervalValidation", "crosses_multiple"]

# A number of batches that no run reaches.
_NEVER = sys.maxsize


def crosses_multiple(before: int, after: int, interval: int) -> bool:
    """Tell whether a multiple of an interval was reached between two counts.

    Args:
        before: Count so far, 0 or more.
        after: Count now.
        interval: The interval, at least 1.

    Example:
        >>> [crosses_multiple(before, before + 7, 10) for before in (0, 7, 14)]
        [False, True, True]
    """
    return after // interval > before // interval


class SampleIntervalValidation(Callback):
    """Run the validation whenever so many more samples were trained, across epochs.

    It takes the place of ``val_check_interval``; ``limit_val_batches`` holds. Samples are counted
    over all ranks: those that BatchSizeWarmup has planned, else those in the batches, and with
    several ranks the loader's batch size times ranks. A callback that acts on a validation metric
    should do so after each validation, as ``ModelCheckpoint(save_on_train_epoch_end=False)`` and
    ``EarlyStopping(check_on_train_epoch_end=False)``.

    Logged with each validation: ``lightning_mp/validation/samples_seen``, in samples over all
    ranks.

    Args:
        every_n_samples: Samples over all ranks between validations, at least 1. More than one
            multiple within a batch is one validation.
        global_batch_size: Samples of a batch over all ranks, where loader or batch do not tell.

    Attributes:
        num_samples_seen: Samples over all ranks that were trained so far.

    Raises:
        ValueError: An argument is out of its range, or (when training starts) the Trainer has an
            interval of its own, or the batch size is not known.

    Example:
        >>> SampleIntervalValidation(every_n_samples=50_000).num_samples_seen
        0
    """

    def __init__(self, every_n_samples: int, global_batch_size: int | None = None) -> None:
        require_count("every_n_samples", every_n_samples)
        if global_batch_size is not None:
            require_count("global_batch_size", global_batch_size)
        self.every_n_samples = every_n_samples
        self.global_batch_size = global_batch_size
        self.num_samples_seen = 0

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="SampleIntervalValidation")
        if stage != "fit":
            return
        own = {"val_check_interval": (1.0,), "check_val_every_n_epoch": (1, None)}
        for name, allowed in own.items():
            value = getattr(trainer, name)
            if value not in allowed:
                raise ValueError(
                    f"{name} = {value} with SampleIntervalValidation, which validates by samples; "
                    f"only {allowed[0]} is allowed; leave it out, or remove the callback"
                )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.global_batch_size is None and trainer.world_size > 1:
            loader_batch_size(trainer, asked_by="SampleIntervalValidation")

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before = self.num_samples_seen
        self.num_samples_seen = self._count(trainer, batch)
        is_due = crosses_multiple(before, self.num_samples_seen, self.every_n_samples)
        # The loop asks after this hook whether the number of batches is a multiple of it. Only now:
        # a resumed loop that has to finish an epoch needs Lightning's own value to do so.
        trainer.val_check_batch = 1 if is_due else _NEVER

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.barebones or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        # A float64 tensor on the host: exact beyond 2**24 samples, and nothing is copied.
        value = torch.tensor(self.num_samples_seen, dtype=torch.float64)
        pl_module.log("lightning_mp/validation/samples_seen", value)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"num_samples_seen": self.num_samples_seen}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_samples_seen = state_dict["num_samples_seen"]

    def _count(self, trainer: Trainer, batch: Any) -> int:
        source = find_batch_size_source(trainer)
        if self.global_batch_size is not None:
            return self.num_samples_seen + self.global_batch_size
        if source is not None:
            return source.num_samples_seen
        if trainer.world_size > 1:
            # The same on each rank, as all have to validate at once.
            size = loader_batch_size(trainer, asked_by="SampleIntervalValidation")
            return self.num_samples_seen + size * trainer.world_size
        return self.num_samples_seen + batch_length(
            batch, asked_by="SampleIntervalValidation", argument="global_batch_size"
        )

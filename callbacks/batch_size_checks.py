"""Checks of `BatchSizeWarmup`: what it refuses, and what it warns about."""

import inspect
from collections.abc import Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from lightning_mp.lightning_api import (
    BatchSizeFinder,
    DDPStrategy,
    DeepSpeedStrategy,
    GradientAccumulationScheduler,
    LightningModule,
    SingleDeviceStrategy,
    SingleDeviceXLAStrategy,
    Trainer,
    XLAStrategy,
    rank_zero_warn,
)

__all__ = [
    "check_equal_shares",
    "check_loader",
    "check_trainer",
    "warn_no_learning_rate_rule",
    "warn_stale_schedulers",
]


def check_trainer(trainer: Trainer, pl_module: LightningModule, owner: type) -> None:
    """Check that the Trainer's settings go with a scheduled batch size.

    Args:
        trainer: Trainer that starts to fit.
        pl_module: Its module.
        owner: Class of the callback that schedules the batch size.

    Raises:
        ValueError: A setting contradicts the schedule.
        TypeError: The strategy or the training step does not support it.
    """
    name = owner.__name__
    is_known = isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy))
    if not is_known or isinstance(trainer.strategy, _UNSUPPORTED_STRATEGIES):
        raise TypeError(
            f"strategy = {type(trainer.strategy).__name__} with {name}; supported are one device "
            "and DDP; use strategy='auto' or 'ddp'"
        )
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            f"accumulate_grad_batches = {trainer.accumulate_grad_batches} with {name}; it would "
            "multiply the scheduled global batch, so only 1 is allowed; remove it and schedule "
            "the whole batch"
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined] (set by a connector)
        if isinstance(callback, (BatchSizeFinder, GradientAccumulationScheduler)):
            raise ValueError(
                f"callbacks = {type(callback).__name__} and {name}; only one callback can set the "
                "batch size; remove one of them"
            )
    if "dataloader_iter" in inspect.signature(pl_module.training_step).parameters:
        raise TypeError(
            f"training_step(dataloader_iter) with {name}; it may take any number of batches per "
            "step, so samples cannot be counted; use training_step(batch, batch_idx)"
        )


def check_loader(loader: object, owner: type) -> None:
    """Check that a training loader's batches can be rescheduled.

    Args:
        loader: What the user gave as (one) training loader.
        owner: Class of the callback that schedules the batch size.

    Raises:
        TypeError: The loader, its data set or its batch sampler is of an unsupported kind.
        ValueError: The loader does not make batches.
    """
    name = owner.__name__
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"train_dataloader = {type(loader).__name__} with {name}; a torch DataLoader is "
            "needed; wrap the data in one"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(
            f"dataset = {type(loader.dataset).__name__} with {name}; an IterableDataset decides "
            "itself what comes next, so a batch sampler cannot size its batches; use a map-style "
            "Dataset"
        )
    if callable(getattr(loader, "state_dict", None)):
        raise TypeError(
            f"train_dataloader = {type(loader).__name__} with {name}; a loader that restores its "
            "own position would skip samples twice on resume; use a plain DataLoader"
        )
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is None:
        raise ValueError(
            f"batch_size = None with {name}; the loader makes no batches (batch_size=None, or "
            "batch_sampler= under DDP); pass batch_size=1 and sampler="
        )
    if type(batch_sampler) is not BatchSampler:
        raise TypeError(
            f"batch_sampler = {type(batch_sampler).__name__} with {name}; only torch's "
            "BatchSampler can be replaced without changing which samples go together; pass its "
            "order as DataLoader(sampler=...)"
        )
    if not isinstance(batch_sampler.sampler, Sized):
        raise TypeError(
            f"sampler = {type(batch_sampler.sampler).__name__} with {name}; its length is "
            "needed to plan an epoch; give the sampler a __len__"
        )


def check_equal_shares(trainer: Trainer, num_samples: int) -> None:
    """Check that all ranks have the same number of samples; all ranks must call it.

    Args:
        trainer: Trainer that loads its training data.
        num_samples: Samples of this rank in one epoch.

    Raises:
        ValueError: The ranks differ.
    """
    if trainer.world_size == 1:
        return
    mine = torch.tensor(num_samples, device=trainer.strategy.root_device)
    least, most = (
        int(trainer.strategy.reduce(mine.clone(), reduce_op=operation))
        for operation in ("min", "max")
    )
    if least != most:
        raise ValueError(
            f"samples per rank = {least} to {most}; ranks with fewer batches would leave the "
            "others waiting; give every rank the same number, as DistributedSampler does"
        )


def warn_no_learning_rate_rule(trainer: Trainer, start: int, end: int) -> None:
    """Warn when the batch grows and nothing adapts the learning rate.

    Args:
        trainer: Trainer whose optimizers are set up.
        start: First global batch size, in samples.
        end: Last global batch size, in samples.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] (set by a connector)
    has_rule = bool(trainer.lr_scheduler_configs) or any(
        getattr(callback, "scales_learning_rate", False) for callback in callbacks
    )
    if start == end or has_rule:
        return
    rank_zero_warn(
        f"The global batch size grows from {start} to {end} samples and no learning-rate rule "
        "goes with it: a rate tuned for one size is usually wrong for the other. Return a "
        "learning-rate scheduler from configure_optimizers (BatchSizeWarmup.planned_steps gives "
        "its length), or add LearningRateScaling (or another callback that scales the rate, with "
        "the attribute scales_learning_rate = True)."
    )


def warn_stale_schedulers(trainer: Trainer, num_steps: int | float) -> None:
    """Warn when a learning-rate scheduler was built for Lightning's own step estimate.

    Lightning multiplies the first epoch's batches by the number of epochs. A scheduler whose
    ``total_steps``, ``T_max`` or ``total_iters`` equals that number, and not the planned one, is
    named; a scheduler that hides its length in a function cannot be recognised.

    Args:
        trainer: Trainer whose data and optimizers are set up.
        num_steps: Planned optimizer steps of the run.
    """
    estimate = trainer.estimated_stepping_batches
    if estimate == num_steps:
        return
    for config in trainer.lr_scheduler_configs:
        lengths = (
            getattr(config.scheduler, name, None)
            for name in ("total_steps", "T_max", "total_iters")
        )
        if config.interval == "step" and estimate in lengths:
            rank_zero_warn(
                f"{type(config.scheduler).__name__} was built for {estimate} steps, as "
                "trainer.estimated_stepping_batches says, but the growing batch makes "
                f"{num_steps}: the schedule would not finish. Use "
                "BatchSizeWarmup.planned_steps(trainer) in configure_optimizers."
            )


# Subclasses of supported ones: DeepSpeed fixes its batch size, XLA wraps the loaders.
_UNSUPPORTED_STRATEGIES = (DeepSpeedStrategy, XLAStrategy, SingleDeviceXLAStrategy)

"""Keep the Trainer's frozen limits in step with epochs of changing length.

Lightning computes the number of training batches once, when the data is loaded. These functions
do it again for each epoch, before the epoch's iterator and progress bars are made. They are the
only place that touches the fit loop's private attributes.
"""

from typing import Any

from lightning_mp.callbacks.batch_size_plan import limit_num_batches
from lightning_mp.callbacks.scheduled_batch_sampler import ScheduledBatchSampler
from lightning_mp.lightning_api import TQDMProgressBar, Trainer

__all__ = [
    "count_batches",
    "count_cycle_batches",
    "count_epochs",
    "find_leader",
    "list_batch_samplers",
    "refresh_limits",
    "restart_iterator",
    "settle_restored_progress",
    "show_total",
]


def count_batches(trainer: Trainer) -> tuple[int, int]:
    """Return the training batches that the loop started and finished, over the whole run."""
    total: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return total.started, total.processed


def count_epochs(trainer: Trainer) -> int:
    """Return the epochs that the loop has processed: the index of the one that runs or begins."""
    current: Any = trainer.fit_loop.epoch_progress.current
    return current.processed


def list_batch_samplers(trainer: Trainer) -> list[ScheduledBatchSampler]:
    """Return the batch samplers of the training loaders, in the user's order."""
    return [loader.batch_sampler for loader in _combined_loader(trainer).flattened]


def find_leader(trainer: Trainer) -> ScheduledBatchSampler:
    """Return the batch sampler that sets the length of the epoch and counts the samples.

    Args:
        trainer: Trainer whose training data is loaded.

    Returns:
        The one with the most batches, or with the fewest in mode ``min_size``.
    """
    pick = min if _combined_loader(trainer)._mode == "min_size" else max
    return pick(
        list_batch_samplers(trainer), key=lambda sampler: len(sampler.batch_sizes(single_pass=True))
    )


def count_cycle_batches(trainer: Trainer) -> int | None:
    """Return the batches that cycled loaders have to fill, or None where none is cycled."""
    loader = _combined_loader(trainer)
    if loader._mode != "max_size_cycle" or len(loader.flattened) == 1:
        return None
    return len(find_leader(trainer).batch_sizes(single_pass=True))


def refresh_limits(trainer: Trainer) -> int:
    """Recompute the batches of the epoch and of its validation interval.

    Args:
        trainer: Trainer whose training data is loaded.

    Returns:
        Batches that the epoch runs.
    """
    fit_loop, loader = trainer.fit_loop, _combined_loader(trainer)
    limit = trainer.limit_train_batches
    assert limit is not None  # for the type checker: Trainer.__init__ sets a number
    limits = [limit_num_batches(len(sampler), limit) for sampler in list_batch_samplers(trainer)]
    loader.limits = limits
    num_batches = min(limits) if loader._mode == "min_size" else max(limits)
    fit_loop.max_batches = num_batches
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return num_batches
    interval = trainer.val_check_interval
    if isinstance(interval, float):
        trainer.val_check_batch = max(1, int(num_batches * interval))
    elif trainer.check_val_every_n_epoch is not None:
        # An interval longer than a shrunken epoch would never validate in it.
        trainer.val_check_batch = min(interval, num_batches)
    return num_batches


def restart_iterator(trainer: Trainer) -> None:
    """Make the epoch's iterator anew, after the batch samplers moved."""
    fetcher = trainer.fit_loop._data_fetcher
    if fetcher is not None:
        iter(fetcher)


def settle_restored_progress(trainer: Trainer) -> None:
    """Correct the restored counters of the batches where Lightning does not.

    From 2.5 on Lightning counts the batch whose end hooks wrote the checkpoint as completed, and
    sees that a checkpoint written inside the last batch leaves that batch to do. Before, it
    resumed one batch short, or left the last one out.

    Args:
        trainer: Trainer that resumes, its limits refreshed.
    """
    if hasattr(trainer.fit_loop, "update_restart_stage"):
        return
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    if progress.current.completed == progress.current.processed - 1:
        progress.increment_completed()
    elif progress.current.completed < progress.current.ready:
        progress.is_last_batch = False


def show_total(trainer: Trainer, epoch: int) -> None:
    """Give the tqdm bar its total: Lightning leaves it without one in a resumed epoch.

    Args:
        trainer: Trainer that resumes, its limits refreshed.
        epoch: Index of the epoch.
    """
    bar = trainer.progress_bar_callback
    if isinstance(bar, TQDMProgressBar) and not bar.is_disabled:
        bar.train_progress_bar.total = trainer.num_training_batches
        bar.train_progress_bar.set_description(f"Epoch {epoch}")


def _combined_loader(trainer: Trainer) -> Any:
    return trainer.fit_loop._combined_loader

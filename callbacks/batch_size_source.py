"""Find out how large the global batch is that a Trainer takes next."""

from typing import Any, Protocol, cast

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_mp.lightning_api import Trainer

__all__ = ["BatchSizeSource", "batch_length", "find_batch_size_source", "loader_batch_size"]


class BatchSizeSource(Protocol):
    """What a callback that schedules the batch size tells others."""

    @property
    def planned_global_batch_size(self) -> int:
        """Size of the batch that is trained now, or next, in samples over all ranks."""
        ...

    @property
    def largest_global_batch_size(self) -> int:
        """Largest size of the whole run, in samples over all ranks."""
        ...

    @property
    def num_samples_seen(self) -> int:
        """Samples over all ranks in the batches trained so far."""
        ...

    def planned_steps(self, trainer: Trainer) -> int | float:
        """Count the optimizer steps of the whole run.

        Args:
            trainer: The Trainer.
        """
        ...


def find_batch_size_source(trainer: Trainer) -> BatchSizeSource | None:
    """Return the callback that schedules the batch size, if there is one.

    Args:
        trainer: The Trainer.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] (set by a connector)
    for callback in callbacks:
        if hasattr(type(callback), "planned_global_batch_size"):
            return cast(BatchSizeSource, callback)
    return None


def loader_batch_size(trainer: Trainer, asked_by: str) -> int:
    """Return the batch size of the training loader of this rank.

    Args:
        trainer: A Trainer that has loaded its training data.
        asked_by: Name of the caller, for the message.

    Returns:
        Samples per batch and rank.

    Raises:
        ValueError: There are several loaders, or the one does not tell.
    """
    loaders = tree_leaves(trainer.train_dataloader)
    sizes = [_batch_size_of(loader) for loader in loaders]
    size = sizes[0] if len(sizes) == 1 else None
    if size is None:
        raise ValueError(
            f"batch_size = {sizes} of the training loaders with {asked_by}; one loader that knows "
            "its batch size is needed; pass global_batch_size, in samples over all ranks"
        )
    return size


def batch_length(batch: Any, asked_by: str, argument: str) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor.

    Args:
        batch: What a loader gave.
        asked_by: Name of the caller, for the message.
        argument: Name of its argument that says the number, for the message.

    Returns:
        Number of samples of this rank.

    Raises:
        ValueError: There is no tensor in the batch.
    """
    for item in tree_leaves(batch):
        if isinstance(item, Tensor) and item.ndim:
            return len(item)
    raise ValueError(
        f"batch = {type(batch).__name__} without a tensor; {asked_by} needs the number of its "
        f"samples; pass {argument}"
    )


def _batch_size_of(loader: Any) -> int | None:
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(sampler, "batch_size", None) or getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None

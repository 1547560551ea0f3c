"""Plan batch sizes as a pure function of the samples consumed so far.

Everything is counted in samples over all ranks. A *schedule* is any function from consumed samples
to the global batch size; `BatchSizeRamp` is the one that grows linearly, with the meaning of
Megatron-LM's ``--rampup-batch-size``. The same plan serves the batch sampler, the progress totals
and the length of learning-rate schedules, so that they cannot disagree.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

__all__ = [
    "BatchSizeRamp",
    "check_world_size",
    "epoch_batch_sizes",
    "iterate_batch_sizes",
    "limit_num_batches",
    "planned_steps",
    "slice_epoch",
]


@dataclass(frozen=True)
class BatchSizeRamp:
    """Grows the global batch size in equal stages over a number of consumed samples.

    With ``n = (end - start) / increment`` stages, the size is ``start`` for the first
    ``num_samples / n`` samples, ``start + increment`` for the next ones, and so on; from
    ``num_samples`` on it is ``end``.

    Args:
        start_global_batch_size: Size of the first batch, in samples over all ranks, >= 1.
        end_global_batch_size: Size after the warm-up, >= the start.
        num_samples: Consumed samples over which the size grows, >= 1.
        increment: Samples added per stage, >= 1; must divide the growth.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is out of range, or the increment does not divide the growth.

    Example:
        >>> ramp = BatchSizeRamp(16, 64, num_samples=300, increment=16)
        >>> [ramp(seen) for seen in (0, 99, 100, 299, 300)]
        [16, 16, 32, 48, 64]
    """

    start_global_batch_size: int
    end_global_batch_size: int
    num_samples: int
    increment: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _check_count(name, value)
        growth = self.end_global_batch_size - self.start_global_batch_size
        if growth < 0:
            raise ValueError(
                f"end_global_batch_size = {self.end_global_batch_size} is smaller than "
                f"start_global_batch_size = {self.start_global_batch_size}; "
                "a warm-up only grows the batch; swap the two or lower the start"
            )
        if growth % self.increment:
            divisors = [d for d in range(1, growth + 1) if growth % d == 0]
            raise ValueError(
                f"increment = {self.increment} does not divide the growth of {growth} samples "
                f"({self.start_global_batch_size} to {self.end_global_batch_size}); use "
                f"{_name_nearest(self.increment, divisors)}"
            )

    def __call__(self, num_samples_seen: int) -> int:
        """Return the global batch size after ``num_samples_seen`` consumed samples."""
        if num_samples_seen >= self.num_samples:
            return self.end_global_batch_size
        num_stages = (self.end_global_batch_size - self.start_global_batch_size) // self.increment
        stage = num_samples_seen * num_stages // self.num_samples
        return self.start_global_batch_size + stage * self.increment


def check_world_size(world_size: int, **global_sizes: int) -> None:
    """Check that global sizes can be divided evenly over the ranks.

    Args:
        world_size: Number of ranks, >= 1.
        **global_sizes: Sizes in samples over all ranks, by the name to show in the message.

    Raises:
        ValueError: A size is not a multiple of the world size.
    """
    for name, size in global_sizes.items():
        if size % world_size:
            below = size // world_size * world_size
            allowed = [multiple for multiple in (below, below + world_size) if multiple > 0]
            raise ValueError(
                f"{name} = {size} cannot be divided over {world_size} ranks; it must be a "
                f"multiple of the world size; use {_name_nearest(size, allowed)}"
            )


def iterate_batch_sizes(schedule: Callable[[int], int], num_samples_seen: int) -> Iterator[int]:
    """Yield global batch sizes for ever, as if the samples never ran out.

    Args:
        schedule: Maps consumed samples to the global batch size.
        num_samples_seen: Samples consumed before the first batch.

    Yields:
        The global size of each batch, in samples.

    Raises:
        ValueError: The schedule returned a size below 1.
    """
    while True:
        size = schedule(num_samples_seen)
        if size < 1:
            raise ValueError(
                f"schedule({num_samples_seen}) = {size}; a global batch size is at least 1; "
                "correct the schedule"
            )
        yield size
        num_samples_seen += size


def slice_epoch(
    batch_sizes: Iterable[int],
    num_epoch_samples: int,
    *,
    drop_last: bool = False,
    num_batches: int | None = None,
) -> Iterator[tuple[int, int, int]]:
    """Cut the samples of one epoch into batches.

    Args:
        batch_sizes: Wanted size of each batch, at least as many as are needed.
        num_epoch_samples: Samples in one pass.
        drop_last: Whether a last batch that is smaller than wanted is left out.
        num_batches: None makes one pass. A number starts further passes until so many batches
            are made (a short data set that is cycled beside a longer one).

    Yields:
        (pass index, first sample, one past the last sample) of each batch.

    Raises:
        ValueError: A cycled data set cannot fill one batch.
    """
    pass_index, start = 0, 0
    for size in islice(batch_sizes, num_batches):
        if start >= num_epoch_samples or (drop_last and num_epoch_samples - start < size):
            if num_batches is None:
                return
            if num_epoch_samples < (size if drop_last else 1):
                raise ValueError(
                    f"batch size = {size} with drop_last=True; the cycled data set has only "
                    f"{num_epoch_samples} samples; set drop_last=False or use a smaller batch"
                )
            pass_index, start = pass_index + 1, 0
        stop = min(start + size, num_epoch_samples)
        yield pass_index, start, stop
        start = stop


def epoch_batch_sizes(
    schedule: Callable[[int], int],
    *,
    num_epoch_samples: int,
    num_samples_seen: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """List the global batch sizes of one epoch.

    Args:
        schedule: Maps consumed samples to the global batch size.
        num_epoch_samples: Samples of the epoch over all ranks, padding included.
        num_samples_seen: Samples consumed before the epoch.
        drop_last: Whether a last batch that is smaller than wanted is left out.

    Returns:
        Size of each batch, in samples over all ranks.

    Example:
        >>> epoch_batch_sizes(BatchSizeRamp(4, 12, 20, increment=4), num_epoch_samples=29)
        [4, 4, 4, 8, 9]
    """
    sizes = iterate_batch_sizes(schedule, num_samples_seen)
    slices = slice_epoch(sizes, num_epoch_samples, drop_last=drop_last)
    return [stop - start for _, start, stop in slices]


def limit_num_batches(num_batches: int, limit: int | float) -> int:
    """Apply Lightning's ``limit_train_batches`` to the number of batches of an epoch.

    A fraction keeps at least one batch, so that an epoch that became short does not vanish.

    Args:
        num_batches: Batches of the whole epoch.
        limit: An int is a number of batches, a float the fraction of the epoch.

    Returns:
        Number of batches that are run.
    """
    if isinstance(limit, int):
        return min(num_batches, limit)
    return min(num_batches, max(1, int(num_batches * limit)))


def planned_steps(
    schedule: Callable[[int], int],
    *,
    num_epochs: int,
    num_epoch_samples: int,
    drop_last: bool = False,
    limit: int | float = 1.0,
    constant_from: int | None = None,
) -> int:
    """Count the optimizer steps of a whole run, from its first sample.

    Args:
        schedule: Maps consumed samples to the global batch size.
        num_epochs: Epochs of the run.
        num_epoch_samples: Samples of one epoch over all ranks, padding included.
        drop_last: Whether a last batch that is smaller than wanted is left out.
        limit: Number (int) or fraction (float) of each epoch's batches that is run.
        constant_from: Consumed samples from which the schedule is constant, if known: the epochs
            after it are counted once, not one by one.

    Returns:
        Number of optimizer steps.

    Raises:
        ValueError: An epoch would have no batch.

    Example:
        >>> ramp = BatchSizeRamp(4, 20, num_samples=150, increment=4)
        >>> planned_steps(ramp, num_epochs=3, num_epoch_samples=103)
        30
    """
    num_steps, num_samples_seen = 0, 0
    for epoch in range(num_epochs):
        sizes = epoch_batch_sizes(
            schedule,
            num_epoch_samples=num_epoch_samples,
            num_samples_seen=num_samples_seen,
            drop_last=drop_last,
        )
        if not sizes:
            raise ValueError(
                f"global batch size = {schedule(num_samples_seen)} in epoch {epoch}; an epoch of "
                f"{num_epoch_samples} samples has no batch with drop_last={drop_last}; use a "
                "smaller batch, more data or drop_last=False"
            )
        del sizes[limit_num_batches(len(sizes), limit) :]
        if constant_from is not None and num_samples_seen >= constant_from:
            return num_steps + len(sizes) * (num_epochs - epoch)
        num_steps += len(sizes)
        num_samples_seen += sum(sizes)
    return num_steps


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r}; an integer number of samples is needed; pass an int")
    if value < 1:
        raise ValueError(f"{name} = {value}; at least 1 sample is needed; pass a larger number")


def _name_nearest(value: int, allowed: list[int]) -> str:
    below = [size for size in allowed if size < value][-1:]
    above = [size for size in allowed if size > value][:1]
    return " or ".join(str(size) for size in below + above)

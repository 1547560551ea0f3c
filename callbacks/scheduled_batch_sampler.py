"""A batch sampler whose batch size follows the samples consumed so far."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Sampler

from lightning_mp.callbacks.batch_size_plan import iterate_batch_sizes, slice_epoch
from lightning_mp.callbacks.epoch_position import EpochPosition
from lightning_mp.callbacks.epoch_sampler import EpochSampler

__all__ = ["ScheduledBatchSampler"]


class ScheduledBatchSampler(Sampler[list[Any]]):
    """Slices the order of one sampler into batches of scheduled sizes.

    The size of each batch is a pure function of the samples before it, so workers that prefetch
    do not make it lag, every sample of an epoch comes exactly once, and a run that is resumed in
    the middle of an epoch gets exactly the batches that were left.

    A hand-written loop announces each epoch with `set_epoch` and each trained batch with
    `count_batch`; `state_dict` then holds the position. `BatchSizeWarmup` does this by itself.

    Args:
        sampler: Sampler of this rank's indices; must have a length.
        schedule: Maps consumed samples over all ranks to the global batch size, each a multiple
            of the world size.
        world_size: Number of ranks that share the global batch.
        rank: Rank of this process.
        drop_last: Whether a last batch that is smaller than scheduled is left out.
        seed: Seed of the epochs' orders.
        num_batches: None makes one pass per epoch. A function returning a number makes the
            sampler start over until so many batches are made.
        on_epoch: Called when the epoch is announced to `sampler`, in place of `set_epoch`.

    Raises:
        TypeError: The sampler has no length.

    Example:
        >>> from torch.utils.data import SequentialSampler
        >>> from lightning_mp.callbacks.batch_size_plan import BatchSizeRamp
        >>> list(ScheduledBatchSampler(SequentialSampler(range(7)), BatchSizeRamp(1, 3, 6)))
        [[0], [1], [2], [3, 4], [5, 6]]
    """

    def __init__(
        self,
        sampler: Any,
        schedule: Callable[[int], int],
        *,
        world_size: int = 1,
        rank: int = 0,
        drop_last: bool = False,
        seed: int = 0,
        num_batches: Callable[[], int | None] | None = None,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        # Lightning announces the epoch to `batch_sampler.sampler`, before any hook of the epoch.
        self.sampler = EpochSampler(
            sampler, seed=seed, rank=rank, on_epoch=on_epoch or self.set_epoch
        )
        self.drop_last = drop_last
        self.position = EpochPosition()
        self._schedule = schedule
        self._world_size = world_size
        self._num_batches = num_batches
        # Of the current epoch, by the number of batches: Lightning asks for the length often.
        self._sizes: dict[int | None, list[int]] = {}

    def __len__(self) -> int:
        """Return the batches of the whole epoch, those already trained included."""
        return len(self.batch_sizes())

    def __iter__(self) -> Iterator[list[Any]]:
        """Iterate over the batches of the epoch that were not trained yet."""
        # The position is taken now: it may move on while prefetching workers still draw.
        return self._iterate(self.position)

    @property
    def num_samples_per_pass(self) -> int:
        """Samples of this rank in one pass."""
        return len(self.sampler)

    @property
    def num_samples_seen(self) -> int:
        """Samples over all ranks consumed so far, by the batches that were counted."""
        done = self.batch_sizes()[: self.position.num_batches_done]
        return self.position.num_samples_before + sum(done) * self._world_size

    def batch_sizes(self, *, single_pass: bool = False) -> list[int]:
        """List the sizes of the epoch's batches.

        Args:
            single_pass: Whether to stop at the end of the data even if the sampler is cycled.

        Returns:
            Samples of this rank in each batch.

        Raises:
            ValueError: A global batch size is not a multiple of the world size.
        """
        num_batches = None if single_pass else self._cycle_length()
        if num_batches not in self._sizes:
            slices = self._slices(self.position, num_batches)
            self._sizes[num_batches] = [stop - start for _, start, stop in slices]
        return list(self._sizes[num_batches])

    def start_epoch(self, position: EpochPosition) -> None:
        """Put the sampler at a position; iterators made later start there.

        Args:
            position: Epoch, samples before it, and batches of it that are done.
        """
        self.position = position
        self._sizes.clear()
        self.sampler.epoch = position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch after the samples that were counted; the current epoch is kept as it is.

        Args:
            epoch: Index of the epoch.
        """
        if epoch != self.position.epoch:
            self.start_epoch(EpochPosition(epoch, self.num_samples_seen))

    def count_batch(self) -> None:
        """Count one batch as trained."""
        position = self.position
        self.position = EpochPosition(
            position.epoch, position.num_samples_before, position.num_batches_done + 1
        )

    def state_dict(self) -> dict[str, int]:
        """Return the seed and the position, counted in trained batches."""
        return {"seed": self.sampler.seed, **vars(self.position)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state_dict: The saved state.
        """
        position = dict(state_dict)
        self.sampler.seed = position.pop("seed")
        self.start_epoch(EpochPosition(**position))

    def _iterate(self, position: EpochPosition) -> Iterator[list[Any]]:
        order: list[Any] = []
        drawn_pass = -1
        for index, (pass_index, start, stop) in enumerate(
            self._slices(position, self._cycle_length())
        ):
            if index < position.num_batches_done:
                continue
            if pass_index != drawn_pass:
                order, drawn_pass = self.sampler.draw(position.epoch, pass_index), pass_index
            yield order[start:stop]

    def _slices(
        self, position: EpochPosition, num_batches: int | None
    ) -> Iterator[tuple[int, int, int]]:
        return slice_epoch(
            self._rank_batch_sizes(position.num_samples_before),
            len(self.sampler),
            drop_last=self.drop_last,
            num_batches=num_batches,
        )

    def _cycle_length(self) -> int | None:
        return None if self._num_batches is None else self._num_batches()

    def _rank_batch_sizes(self, num_samples_seen: int) -> Iterator[int]:
        for size in iterate_batch_sizes(self._schedule, num_samples_seen):
            if size % self._world_size:
                raise ValueError(
                    f"global batch size = {size} cannot be divided over {self._world_size} ranks; "
                    "it must be a multiple of the world size; change the schedule"
                )
            yield size // self._world_size

"""Where a run stands, counted in batches that were trained."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from lightning_mp.callbacks.epoch_position import EpochPosition

__all__ = ["RunPosition"]


class RunPosition:
    """Follows a run through its epochs by the training loop's own counters.

    Counting what was trained, not what was emitted, is what makes prefetching harmless; reading the
    loop's counters rather than counting in a hook makes a checkpoint right at whatever point of
    the step it is written.

    Args:
        count_batches: Returns the batches started and finished since some fixed moment. A batch
            counts as trained when it was both: a failed one was only started, a skipped one only
            finished.
    """

    def __init__(self, count_batches: Callable[[], tuple[int, int]]) -> None:
        self.epoch = EpochPosition()
        self.num_epoch_samples = 0
        self._count_batches = count_batches
        self._counts_at_start: tuple[int, int] | None = None
        self._num_samples_at_start = 0
        self._num_samples_by_batch = [0]
        self._has_to_match = False
        self._num_epoch_batches = 0
        self._restored: dict[str, Any] = {}

    @property
    def is_restored(self) -> bool:
        """Whether a loaded state waits for the loop to say which epoch it resumes."""
        return bool(self._restored)

    @property
    def num_batches_done(self) -> int:
        """Batches of the current epoch trained so far, those before a resume included."""
        if self._counts_at_start is None:
            return self.epoch.num_batches_done
        counts = zip(self._count_batches(), self._counts_at_start, strict=True)
        return self.epoch.num_batches_done + min(now - start for now, start in counts)

    @property
    def num_samples_seen(self) -> int:
        """Samples over all ranks trained so far, over the whole run."""
        if self._restored:
            return self._restored["num_samples_seen"]
        first, done = self.epoch.num_batches_done, self.num_batches_done
        if first == done:
            return self._num_samples_at_start
        in_epoch = self._num_samples_by_batch[done] - self._num_samples_by_batch[first]
        return self._num_samples_at_start + in_epoch

    @property
    def last_batch_size(self) -> int:
        """Samples over all ranks in the batch trained last; one must have been trained."""
        done = self.num_batches_done
        return self._num_samples_by_batch[done] - self._num_samples_by_batch[done - 1]

    def expect_epoch(self, epoch: int) -> EpochPosition:
        """Return where the loaders have to start, before the loop has said which epoch begins.

        Args:
            epoch: The epoch the loop's counters show; not yet restored when a checkpoint was
                loaded, which then decides.

        Returns:
            The expected position; `begin_epoch` may move it.
        """
        if self._restored:
            epoch = self._restored["epoch"] + self._restored["is_epoch_done"]
        self._move_to(epoch)
        self._counts_at_start = None
        return self.epoch

    def begin_epoch(self, epoch: int) -> bool:
        """Take the epoch that the loop begins, or resumes.

        Args:
            epoch: Index of the epoch.

        Returns:
            Whether this was news; several loaders announce the same epoch.
        """
        if (
            self._counts_at_start == self._count_batches()
            and epoch == self.epoch.epoch
            and not self._restored
        ):
            return False
        self._move_to(epoch)
        self._has_to_match = bool(
            self._restored and self.epoch.num_batches_done and not self._restored["is_epoch_done"]
        )
        self._restored = {}
        self._counts_at_start = self._count_batches()
        return True

    def plan_epoch(
        self, batch_sizes: list[int], *, num_batches: int, num_epoch_samples: int
    ) -> None:
        """Take the plan of the epoch that begins.

        Args:
            batch_sizes: Samples over all ranks in each batch of the whole epoch.
            num_batches: Batches that are run, at most as many.
            num_epoch_samples: Samples of the epoch over all ranks.

        Raises:
            ValueError: The run resumes in the middle of an epoch of other data.
        """
        if self._has_to_match and self.num_epoch_samples != num_epoch_samples:
            raise ValueError(
                f"samples per epoch = {num_epoch_samples}; the checkpoint was written in the "
                f"middle of an epoch of {self.num_epoch_samples}; resume with the same data, or "
                "from a checkpoint of the end of an epoch"
            )
        self._num_samples_by_batch = list(accumulate(batch_sizes, initial=0))
        self._num_epoch_batches = num_batches
        self.num_epoch_samples = num_epoch_samples

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain numbers."""
        if self._restored:
            return dict(self._restored)
        num_done = self.num_batches_done
        return {
            "epoch": self.epoch.epoch,
            "num_samples_before": self.epoch.num_samples_before,
            "num_batches_done": num_done,
            "num_samples_seen": self.num_samples_seen,
            "num_epoch_samples": self.num_epoch_samples,
            "is_epoch_done": 0 < self._num_epoch_batches <= num_done,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a position that `state_dict` returned, until `begin_epoch` confirms it.

        Args:
            state_dict: The saved position.
        """
        self._restored = dict(state_dict)
        self.num_epoch_samples = state_dict["num_epoch_samples"]

    def _move_to(self, epoch: int) -> None:
        seen, restored = self.num_samples_seen, self._restored
        if restored and epoch == restored["epoch"]:
            self.epoch = EpochPosition(
                epoch, restored["num_samples_before"], restored["num_batches_done"]
            )
        else:
            self.epoch = EpochPosition(epoch, seen)
        self._num_samples_at_start = seen

"""Measure how long a training loop waits for its data."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

__all__ = ["StallClock", "StallReport"]

Batch = TypeVar("Batch")


class StallReport(NamedTuple):
    """Hold where the time of some steps went.

    Attributes:
        num_batches: Number of batches.
        wait_seconds: Time that the loop waited for a batch, per batch.
        total_seconds: Time of the loop, without what was excluded, per batch.
    """

    num_batches: int
    wait_seconds: float
    total_seconds: float

    @property
    def wait_fraction(self) -> float:
        """Share of the time that was spent waiting, from 0 to 1."""
        return self.wait_seconds / self.total_seconds if self.total_seconds else 0.0


class StallClock:
    """Tell waiting for data from everything else, on the clock of the host.

    Example:
        >>> clock = StallClock()
        >>> for batch in clock.watch([1, 2, 3]):
        ...     pass
        >>> clock.take().num_batches
        3
    """

    def __init__(self) -> None:
        self._num_batches = 0
        self._waited = 0.0
        self._paused = 0.0
        self._start = time.perf_counter()
        self._wait_start: float | None = None
        self._pause_start: float | None = None

    def watch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over a loader and measure each wait.

        Args:
            loader: Anything that gives batches.

        Yields:
            Its batches.
        """
        iterator = iter(loader)
        while True:
            self.begin_wait()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.end_wait()
            self.count_batch()
            yield batch

    def begin_wait(self) -> None:
        """Note that the loop asks for a batch."""
        self._wait_start = time.perf_counter()

    def end_wait(self) -> None:
        """Note that the batch is there, or that there is none. A wait in a pause does not count."""
        if self._wait_start is not None and self._pause_start is None:
            self._waited += time.perf_counter() - self._wait_start
        self._wait_start = None

    def count_batch(self) -> None:
        """Count a batch that the loop has got."""
        self._num_batches += 1

    def begin_pause(self) -> None:
        """Leave out the time from here to :meth:`end_pause`, as that of a validation."""
        if self._pause_start is None:
            self._pause_start = time.perf_counter()

    def end_pause(self) -> float:
        """Count time again.

        Returns:
            Length of the pause in seconds; 0 if there was none.
        """
        if self._pause_start is None:
            return 0.0
        length = time.perf_counter() - self._pause_start
        self._paused += length
        self._pause_start = None
        return length

    def take(self) -> StallReport:
        """Return where the time went since the last call; call it outside of pauses."""
        now, count = time.perf_counter(), max(1, self._num_batches)
        total = now - self._start - self._paused
        report = StallReport(self._num_batches, self._waited / count, total / count)
        self._num_batches, self._waited, self._paused, self._start = 0, 0.0, 0.0, now
        return report

"""A point in time on two clocks."""

import time
from typing import NamedTuple

__all__ = ["Instant"]


class Instant(NamedTuple):
    """Hold the wall clock and the processor time of this process.

    Attributes:
        wall: Seconds of the wall clock.
        cpu: Processor seconds of all threads, in user and system mode.
    """

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Instant":
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, earlier: "Instant") -> "Instant":
        """Return what has passed on each clock.

        Args:
            earlier: An instant of the same process.
        """
        return Instant(self.wall - earlier.wall, self.cpu - earlier.cpu)

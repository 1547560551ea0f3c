"""What was measured of the steps of one list of parameters, and figures made of it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchkit.step_forms import (
    ADOPTING,
    BYTES_MOVED,
    OURS,
    PASS_1,
    PASS_2,
    PASS_2_ADOPTING,
    PASS_2_ROUNDED,
    PASS_2_SPLIT,
    ROUNDED,
    SPLIT,
)

__all__ = ["STREAMS_OF", "StepResult", "StepRun"]

STREAMS_OF: Mapping[str, tuple[str, ...]] = {
    OURS: ("read", "copied"),
    ADOPTING: ("read", "adopted"),
    SPLIT: ("read", "split"),
    ROUNDED: ("read", "rounded"),
    PASS_1: ("read",),
    PASS_2: ("copied",),
    PASS_2_ADOPTING: ("adopted",),
    PASS_2_SPLIT: ("split",),
    PASS_2_ROUNDED: ("rounded",),
}
"""Streams of memory that each of our ways to step, and each pass, cannot do without."""

Rounds = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class StepRun:
    """Hold the times of one process.

    Attributes:
        num_tensors: Number of tensors of the list.
        numel: Number of their elements.
        num_threads: Number of threads; 0 on a GPU.
        clock: ``"cpu"`` or ``"wall"``: the clock that everything here is read from.
        times: Times of each way to step and each pass, by round.
        streams: Times of the streams, by round.
        in_cache: Times of each pass over as many elements that stay in a cache, by round; empty on
            a GPU.
    """

    num_tensors: int
    numel: int
    num_threads: int
    clock: str
    times: Mapping[str, Rounds]
    streams: Mapping[str, Rounds]
    in_cache: Mapping[str, Rounds] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was timed, and by which clock."""
        if not self.num_threads:
            return "GPU time"
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{threads}, {'processor' if self.clock == 'cpu' else 'wall'} time"

    def seconds(self, name: str) -> float:
        """Return the median time of a way or a pass.

        Args:
            name: Its name.
        """
        return statistics.median(self._rounds(name))

    def stream_seconds(self, name: str) -> float:
        """Return the median time of the streams of a way or a pass.

        Args:
            name: Its name, one of ``STREAMS_OF``.
        """
        return statistics.median(self._stream_rounds(name))

    def gigabytes_per_second(self, name: str) -> float:
        """Return what a way or a pass moves per second, of the bytes it asks for.

        Args:
            name: Its name, one of ``BYTES_MOVED``.
        """
        return BYTES_MOVED[name] * self.numel / self.seconds(name) / 1e9

    def ratios(self, peer: str, name: str) -> list[float]:
        """Return how many times as long as a way its peer takes, round by round.

        Args:
            peer: Name of the peer.
            name: Name of the way.
        """
        pairs = zip(self._rounds(peer), self._rounds(name), strict=True)
        return [other / own for other, own in pairs]

    def bandwidth_shares(self, name: str) -> list[float]:
        """Return which share of the time of a way its streams alone take, round by round.

        Args:
            name: Its name, one of ``STREAMS_OF``.
        """
        pairs = zip(self._stream_rounds(name), self._rounds(name), strict=True)
        return [streams / own for streams, own in pairs]

    def _rounds(self, name: str) -> list[float]:
        return [times[self.clock] for times in self.times[name]]

    def _stream_rounds(self, name: str) -> list[float]:
        streams = [self.streams[stream] for stream in STREAMS_OF[name]]
        return [sum(times[self.clock] for times in each) for each in zip(*streams, strict=True)]


@dataclass(frozen=True)
class StepResult:
    """Hold what was measured of one list of parameters in one half dtype.

    Attributes:
        list_name: Name of the list.
        half_dtype: Dtype of weights and gradients.
        runs: Times, one process each.
        memory: Result of ``measure_step_memory``; empty if it was not measured.
    """

    list_name: str
    half_dtype: str
    runs: Sequence[StepRun]
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

"""Step times of all columns of one workload, interleaved in one process."""

import random
import statistics
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from benchkit.column import parse_column
from benchkit.fit import fit
from benchkit.instant import Instant
from benchkit.module import BenchModule
from benchkit.step_timer import StepTimer
from benchkit.time_limit import TimeLimit
from benchkit.workload import Workload, make_workload

__all__ = ["measure_times"]

_NUM_WARMUP_STEPS = 2


def measure_times(
    *,
    workload: str,
    columns: Sequence[str],
    num_rounds: int,
    num_steps: int,
    num_threads: int,
    max_cpu_seconds: float,
    is_smoke: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """Time the steps of some columns, each round in another order.

    Args:
        workload: Name of a workload.
        columns: Names of columns.
        num_rounds: Number of rounds; in each, every column is trained from the start.
        num_steps: Number of timed steps of a fit, after two for warming up.
        num_threads: Number of threads of torch.
        max_cpu_seconds: A fit that takes more processor time ends early; its column has no further
            round then.
        is_smoke: Whether the workload is tiny.

    Returns:
        For each column and round the medians over the steps, in seconds: ``cpu``, ``wall``,
        ``optimizer_cpu`` and ``optimizer_wall``.
    """
    torch.set_num_threads(num_threads)
    what = make_workload(workload, is_smoke=is_smoke)
    batches = what.make_batches(_NUM_WARMUP_STEPS + num_steps)
    remaining = list(columns)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in columns}
    for round_index in range(num_rounds):
        for name in random.Random(round_index).sample(remaining, len(remaining)):
            medians, is_slow = _time_fit(what, name, batches, max_cpu_seconds)
            times[name].append(medians)
            if is_slow:
                remaining.remove(name)
            print(
                f"{workload}: round {round_index + 1} of {num_rounds}: {name:<16} "
                f"{medians['cpu'] * 1e3:9.1f} ms CPU, {medians['wall'] * 1e3:9.1f} ms wall",
                file=sys.stderr,
            )
    return times


def _time_fit(
    workload: Workload, name: str, batches: list[tuple[Tensor, Tensor]], max_cpu_seconds: float
) -> tuple[dict[str, float], bool]:
    timer, limit = StepTimer(), TimeLimit(max_cpu_seconds, min_steps=_NUM_WARMUP_STEPS + 1)
    fit(BenchModule(workload, parse_column(name)), batches, [timer, limit])
    steps = _medians(timer.steps[_NUM_WARMUP_STEPS:])
    parts = _medians(timer.optimizer_parts[_NUM_WARMUP_STEPS:])
    medians = {
        "cpu": steps.cpu,
        "wall": steps.wall,
        "optimizer_cpu": parts.cpu,
        "optimizer_wall": parts.wall,
    }
    return medians, limit.is_exceeded


def _medians(instants: Sequence[Instant]) -> Instant:
    return Instant(*(statistics.median(values) for values in zip(*instants, strict=True)))

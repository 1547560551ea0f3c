"""Times of all ways to step a list of parameters, interleaved in one process."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from benchkit.step_forms import OURS, forms_of, parts_of
from benchkit.step_lists import make_shapes
from benchkit.step_tensors import StepTensors
from benchkit.stopwatch import time_calls
from benchkit.streams import STREAM_BYTES, make_streams, stream_numel

__all__ = ["CALLS", "measure_step_times"]

CALLS = "calls alone"
"""Our step on as many tensors of one element: what the calls cost whatever the memory does."""

# One tensor, with all that belongs to it, stays in the second-level cache of a core.
_CACHED_NUMEL = 32_768
_NUM_CACHED_CALLS = 128


class _Job(NamedTuple):
    run: Callable[[], object]
    num_calls: int


def measure_step_times(
    *,
    list_name: str,
    half_dtype: str,
    num_rounds: int,
    num_threads: int,
    device: str = "cpu",
    num_calls: int = 1,
    without: Sequence[str] = (),
    deadline: float | None = None,
    is_smoke: bool = False,
) -> dict[str, Any]:
    """Time every way to step, its passes and the streams of memory, each round in another order.

    Args:
        list_name: Name of a list of parameters.
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        num_rounds: Number of rounds.
        num_threads: Number of threads of torch.
        device: ``"cpu"`` or ``"cuda"``.
        num_calls: Number of calls of a round.
        without: Ways to step that are left out.
        deadline: Time of ``time.monotonic`` after which no further round starts.
        is_smoke: Whether the list is tiny.

    Returns:
        ``num_tensors``, ``numel`` of all together, ``num_threads``; ``times``: for each way and
        pass, and for ``CALLS``, the ``wall`` and ``cpu`` seconds of a step in each round;
        ``streams``: for each stream the same for as many elements as the list has; and on the CPU
        ``in_cache``: the same for each pass over elements that stay in a cache.
    """
    torch.set_num_threads(num_threads)
    home = torch.device(device)
    dtype = getattr(torch, half_dtype)
    shapes = make_shapes(list_name, is_smoke=is_smoke)
    tensors = StepTensors(shapes, dtype, home)
    makers = {**forms_of(dtype), **parts_of(dtype)}
    jobs = {
        name: _Job(make(tensors), num_calls) for name, make in makers.items() if name not in without
    }
    calls = makers[OURS](StepTensors([(1,) * len(shape) for shape in shapes], dtype, home))
    jobs[CALLS] = _Job(calls, num_calls)
    streams = make_streams(tensors.numel, device=home, num_threads=num_threads)
    times = _interleaved(
        {
            **jobs,
            **{name: _Job(run, num_calls) for name, run in streams.items()},
            **(_cached_jobs(dtype) if device == "cpu" else {}),
        },
        home,
        num_rounds,
        deadline,
    )
    _tell(f"{list_name}, {half_dtype}, {num_threads} threads", times, (*jobs, *streams))
    ratio = tensors.numel / stream_numel(tensors.numel)
    return {
        "num_tensors": len(shapes),
        "numel": tensors.numel,
        "num_threads": num_threads,
        "times": {name: times[name] for name in jobs},
        "streams": {name: [_scaled(item, ratio) for item in times[name]] for name in STREAM_BYTES},
        "in_cache": _in_cache(times, tensors.numel),
    }


def _tell(
    title: str, times: Mapping[str, Sequence[Mapping[str, float]]], names: Iterable[str]
) -> None:
    """Show what was measured, beside the report."""
    for name in names:
        best = min(item["wall"] for item in times[name])
        print(f"{title}: {name:<24} best {best * 1e3:9.2f} ms wall", file=sys.stderr)


def _cached_jobs(half_dtype: torch.dtype) -> dict[str, _Job]:
    """Make each pass over a tensor that fits into a cache, and over one element."""
    home = torch.device("cpu")
    return {
        f"{size} {name}": _Job(make(StepTensors([(size,)], half_dtype, home)), _NUM_CACHED_CALLS)
        for name, make in parts_of(half_dtype).items()
        for size in (1, _CACHED_NUMEL)
    }


def _in_cache(
    times: Mapping[str, list[dict[str, float]]], numel: int
) -> dict[str, list[dict[str, float]]]:
    prefix = f"{_CACHED_NUMEL} "
    ratio = numel / _CACHED_NUMEL
    results = {}
    for name in (key.removeprefix(prefix) for key in times if key.startswith(prefix)):
        # Without what the call itself costs.
        calls = {
            clock: statistics.median(item[clock] for item in times[f"1 {name}"])
            for clock in ("wall", "cpu")
        }
        results[name] = [
            {clock: max(item[clock] - call, 0.0) * ratio for clock, call in calls.items()}
            for item in times[prefix + name]
        ]
    return results


def _interleaved(
    jobs: Mapping[str, _Job], device: torch.device, num_rounds: int, deadline: float | None
) -> dict[str, list[dict[str, float]]]:
    for job in jobs.values():
        job.run()
    times: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for round_index in range(num_rounds):
        if round_index > 0 and deadline is not None and time.monotonic() > deadline:
            break
        for name in _shuffled(jobs, round_index):
            wall, cpu = time_calls(jobs[name].run, device, jobs[name].num_calls)
            times[name].append({"wall": wall, "cpu": cpu})
    return times


def _shuffled(names: Collection[str], seed: int) -> list[str]:
    return random.Random(seed).sample(list(names), len(names))


def _scaled(times: dict[str, float], ratio: float) -> dict[str, float]:
    return {clock: seconds * ratio for clock, seconds in times.items()}

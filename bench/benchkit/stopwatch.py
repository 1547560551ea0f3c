"""Time calls on the CPU or on a GPU."""

from collections.abc import Callable

import torch

from benchkit.instant import Instant

__all__ = ["time_calls"]


def time_calls(run: Callable[[], object], device: torch.device, num_calls: int = 1) -> Instant:
    """Call a function some times in a row.

    Args:
        run: The function.
        device: Where it works.
        num_calls: Number of calls.

    Returns:
        Seconds of a call: of the wall clock, until the device is done too, and of the processor,
        which on a GPU is what it costs to start the work.
    """
    if device.type == "cuda":
        return _time_on_gpu(run, num_calls)
    start = Instant.now()
    for _ in range(num_calls):
        run()
    wall, cpu = Instant.now().since(start)
    return Instant(wall / num_calls, cpu / num_calls)


def _time_on_gpu(run: Callable[[], object], num_calls: int) -> Instant:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start = Instant.now()
    first.record()
    for _ in range(num_calls):
        run()
    last.record()
    cpu = Instant.now().since(start).cpu
    last.synchronize()
    return Instant(first.elapsed_time(last) / 1e3 / num_calls, cpu / num_calls)

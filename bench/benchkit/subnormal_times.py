"""Time of the kernels on subnormal numbers, which some CPUs handle slowly."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.sgd import sgd_step_

__all__ = ["INPUTS", "measure_subnormal_times"]

# Gradients and states: in units of the least normal number of their dtype, or as they are.
INPUTS: dict[str, tuple[float | None, float | None]] = {
    "normal": (None, None),
    "subnormal gradients": (0.25, None),
    "zero gradients, subnormal states": (0.0, 0.25),
    "both subnormal": (0.25, 0.25),
}
_NORMAL = 1e-3
# In the second-level cache, so that waiting for memory hides nothing.
_NUMEL = 1 << 16
# So few that states which decay stay subnormal.
_NUM_CALLS = 10


def measure_subnormal_times(
    *, half_dtype: str, num_rounds: int, numel: int = _NUMEL
) -> dict[str, dict[str, float]]:
    """Time the passes of a step on one thread, on each of :data:`INPUTS` in turn.

    Args:
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        num_rounds: Number of rounds.
        numel: Number of elements.

    Returns:
        For each pass and input the median, in nanoseconds of processor time per element.
    """
    torch.set_num_threads(1)
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(num_rounds):
        for name, (gradient, state) in INPUTS.items():
            for key, call in _passes(getattr(torch, half_dtype), gradient, state, numel).items():
                call()
                start = time.process_time()
                for _ in range(_NUM_CALLS):
                    call()
                seconds = time.process_time() - start
                found = times.setdefault(key, {}).setdefault(name, [])
                found.append(seconds / _NUM_CALLS / numel * 1e9)
    return {
        key: {name: statistics.median(values) for name, values in found.items()}
        for key, found in times.items()
    }


def _passes(
    half_dtype: torch.dtype, gradient: float | None, state: float | None, numel: int
) -> dict[str, Callable[[], None]]:
    gradients = [_filled(numel, gradient, half_dtype)]
    weights = [torch.randn(numel)]
    copies = [weights[0].to(half_dtype)]
    states = [[_filled(numel, state, torch.float32)] for _ in range(3)]
    steps = [torch.zeros(1)]
    norm, factor, found_inf = torch.zeros(3, 1).unbind()
    return {
        "norm and check": lambda: gradient_stats_(
            gradients, norm=norm, factor=factor, found_inf=found_inf
        ),
        "AdamW": lambda: adam_step_(
            gradients, weights, copies, states[0], states[1], steps, lr=1e-3, weight_decay=0.01
        ),
        "SGD with momentum": lambda: sgd_step_(
            gradients, weights, copies, states[2], lr=1e-3, momentum=0.9
        ),
    }


def _filled(numel: int, share: float | None, dtype: torch.dtype) -> Tensor:
    value = _NORMAL if share is None else share * torch.finfo(dtype).tiny
    return torch.full((numel,), value, dtype=dtype)

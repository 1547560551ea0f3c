"""What each way to step keeps in memory between two steps, and at its peak."""

import gc
import sys

import torch

from benchkit.process_memory import give_memory_back, process_bytes, reset_peak
from benchkit.step_forms import MakeStep, forms_of
from benchkit.step_lists import make_shapes
from benchkit.step_tensors import StepTensors

__all__ = ["measure_step_memory"]

_WARM_SHAPES = [(103,)] * 3


def measure_step_memory(
    *,
    list_name: str,
    half_dtype: str,
    num_threads: int,
    device: str = "cpu",
    is_smoke: bool = False,
) -> dict[str, dict[str, float]]:
    """Step twice in every way, with nothing but what that way needs.

    Args:
        list_name: Name of a list of parameters.
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        num_threads: Number of threads of torch.
        device: ``"cpu"`` or ``"cuda"``.
        is_smoke: Whether the list is tiny; the figures are then those of the process, not of it.

    Returns:
        For each way the bytes per parameter, weights and gradients included: ``resident`` after
        a step, and ``peak``.
    """
    torch.set_num_threads(num_threads)
    dtype = getattr(torch, half_dtype)
    shapes = make_shapes(list_name, is_smoke=is_smoke)
    results = {}
    for name, make in forms_of(dtype).items():
        # What is loaded and kept at first use is not to be counted.
        make(StepTensors(_WARM_SHAPES, dtype, torch.device(device)))()
        measure = _on_gpu if device == "cuda" else _on_cpu
        results[name] = measure(make, shapes, dtype)
        print(
            f"{list_name}, {half_dtype}: {name:<24} {results[name]['resident']:6.2f} bytes per "
            "parameter",
            file=sys.stderr,
        )
    return results


def _on_cpu(
    make: MakeStep, shapes: list[tuple[int, ...]], half_dtype: torch.dtype
) -> dict[str, float]:
    give_memory_back()
    base = process_bytes("VmRSS")
    tensors = StepTensors(shapes, half_dtype, torch.device("cpu"))
    run = make(tensors)
    run()
    give_memory_back()
    reset_peak()
    run()
    peak = process_bytes("VmHWM")
    give_memory_back()
    resident = process_bytes("VmRSS")
    numel = tensors.numel
    return {"resident": (resident - base) / numel, "peak": (peak - base) / numel}


def _on_gpu(
    make: MakeStep, shapes: list[tuple[int, ...]], half_dtype: torch.dtype
) -> dict[str, float]:
    gc.collect()
    base = torch.cuda.memory_allocated()
    tensors = StepTensors(shapes, half_dtype, torch.device("cuda"))
    run = make(tensors)
    run()
    torch.cuda.reset_peak_memory_stats()
    run()
    numel = tensors.numel
    return {
        "resident": (torch.cuda.memory_allocated() - base) / numel,
        "peak": (torch.cuda.max_memory_allocated() - base) / numel,
    }

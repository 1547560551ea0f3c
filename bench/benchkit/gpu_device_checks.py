"""Checks of what only a GPU has: streams, graphs, waiting for the device, large memory."""

import math
from collections.abc import Mapping

import torch

from benchkit.gpu_check import Check, NotHereError, require_gpu
from benchkit.step_forms import ADOPTING, FORMS, OURS, ROUNDED, SPLIT
from benchkit.step_lists import make_shapes
from benchkit.step_tensors import StepTensors
from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.gradient_stats import gradient_stats_

__all__ = ["DEVICE_CHECKS"]

_OURS = (OURS, ADOPTING, SPLIT, ROUNDED)
_SHAPES = [(103,), (64, 33), (7, 3, 2, 2), (4096,)]
# Some hundredths of a second on any GPU.
_SLEEP_CYCLES = 50_000_000
_LARGE_NUMEL = 2**31 + 40
_LARGE_BYTES = 16 * _LARGE_NUMEL


def _no_wait(device: torch.device, is_quick: bool) -> str:
    require_gpu(device)
    for name in _OURS:
        run = FORMS[name](StepTensors(_SHAPES, torch.bfloat16, device))
        run()
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return "no step waits for the device"


def _graph(device: torch.device, is_quick: bool) -> str:
    require_gpu(device)
    for name in _OURS:
        eager, replayed = (StepTensors(_SHAPES, torch.bfloat16, device) for _ in range(2))
        step = FORMS[name](eager)
        for _ in range(4):
            step()
        step = FORMS[name](replayed)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        # Other calls in between must not disturb the table that the graph reads.
        FORMS[name](StepTensors([(size,) for size in range(40, 80)], torch.bfloat16, device))()
        for _ in range(3):
            graph.replay()
        for a, b in zip(replayed.halves, eager.halves, strict=True):
            assert torch.equal(a, b), f"{name}: replayed steps differ from eager ones"
        assert all(map(torch.equal, replayed.steps, eager.steps))
    return "replayed steps are bit-equal to eager ones"


def _stream(device: torch.device, is_quick: bool) -> str:
    require_gpu(device)
    gradient = torch.zeros(1 << 20, dtype=torch.bfloat16, device=device)
    norm, factor, found_inf = torch.zeros(3, 1, device=device).unbind()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(_SLEEP_CYCLES)
        gradient.fill_(3.0)
        gradient_stats_([gradient], norm=norm, factor=factor, found_inf=found_inf)
    torch.cuda.synchronize()
    assert norm.item() == 3.0 * 2**10, f"norm = {norm.item()}: the kernel did not wait its turn"
    return "work is done on the current stream"


def _one_launch(device: torch.device, is_quick: bool) -> str:
    require_gpu(device)
    counts = {}
    for name in ("small", "gpt2"):
        tensors = StepTensors(make_shapes(name, is_smoke=True), torch.bfloat16, device)
        run = FORMS[OURS](tensors)
        run()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            run()
            torch.cuda.synchronize()
        events = profile.events() or []
        if not events:
            raise NotHereError("the profiler sees no kernels here")
        names = [event.name for event in events if "lightning_mp" in event.name]
        assert names, "the profiler saw no kernel of lightning_mp"
        counts[name] = len(names)
    assert counts["small"] == counts["gpt2"], f"launches depend on the list: {counts}"
    return f"{counts['small']} kernels for both passes of any list"


def _large(device: torch.device, is_quick: bool) -> str:
    require_gpu(device)
    free, _ = torch.cuda.mem_get_info(device)
    if free < 1.1 * _LARGE_BYTES:
        raise NotHereError(f"{free / 2**30:.0f} GiB are free; {_LARGE_BYTES / 2**30:.0f} needed")
    gradient = torch.ones(_LARGE_NUMEL, dtype=torch.bfloat16, device=device)
    norm, factor, found_inf = torch.zeros(3, 1, device=device).unbind()
    gradient_stats_([gradient], norm=norm, factor=factor, found_inf=found_inf)
    assert math.isclose(norm.item(), math.sqrt(_LARGE_NUMEL), rel_tol=1e-6), norm.item()
    gradient[-1] = math.inf
    gradient_stats_([gradient], norm=norm, factor=factor, found_inf=found_inf)
    assert found_inf.item() == 1.0, "an infinity in the last element was missed"
    gradient[-1] = 1.0
    weight, mean, square = (torch.zeros(_LARGE_NUMEL, device=device) for _ in range(3))
    copy = torch.zeros_like(gradient)
    step = torch.zeros((), device=device)
    adam_step_([gradient], [weight], [copy], [mean], [square], [step], lr=0.5)
    low, high = weight.aminmax()
    assert low.item() == high.item(), f"weights between {low.item()} and {high.item()}"
    assert math.isclose(low.item(), -0.5, rel_tol=1e-5), low.item()
    assert bool((copy == low.bfloat16()).all())
    return f"{_LARGE_NUMEL} elements in one tensor"


DEVICE_CHECKS: Mapping[str, Check] = {
    "no waiting": _no_wait,
    "CUDA graph": _graph,
    "side stream": _stream,
    "launches": _one_launch,
    "more than 2**31 elements": _large,
}

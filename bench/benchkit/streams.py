"""What this machine's memory gives to the streams of a step, whatever is computed on the way."""

import ctypes
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch.utils.cpp_extension import get_cxx_compiler

__all__ = ["STREAM_BYTES", "make_streams", "stream_numel"]

STREAM_BYTES: Mapping[str, int] = {
    "read": 2,
    "copied": 28,
    "adopted": 30,
    "split": 26,
    "rounded": 18,
}
"""Bytes per element of each stream: gradients read; pass 2 without and with adoption, split, and
split with bfloat16 moments."""

# Well beyond the caches, and quick enough to be timed in every round.
_MAX_NUMEL = 32_000_000
_ALIGNMENT = 64
_SOURCE = Path(__file__).with_name("streams.cpp")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")


def stream_numel(numel: int) -> int:
    """Return the number of elements that stand for a list of parameters.

    Args:
        numel: Number of parameters.
    """
    return max(min(numel, _MAX_NUMEL) // _ALIGNMENT, 1) * _ALIGNMENT


def make_streams(
    numel: int, *, device: torch.device, num_threads: int
) -> dict[str, Callable[[], object]]:
    """Make the streams over ``stream_numel(numel)`` elements.

    On the CPU they are loops compiled on the spot. On a GPU they are copies of as many bytes.

    Args:
        numel: Number of parameters.
        device: Where the memory is.
        num_threads: Number of threads on the CPU.

    Returns:
        A function for each of ``STREAM_BYTES``.

    Raises:
        RuntimeError: If there is no compiler that compiles them.
    """
    count = stream_numel(numel)
    if device.type == "cpu":
        return _host_streams(count, num_threads)
    source = torch.zeros(max(STREAM_BYTES.values()) // 2 * count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)

    def copy_of(num_bytes: int) -> Callable[[], object]:
        return lambda: target[: num_bytes // 2].copy_(source[: num_bytes // 2])

    return {name: copy_of(num_bytes * count) for name, num_bytes in STREAM_BYTES.items()}


def _host_streams(count: int, num_threads: int) -> dict[str, Callable[[], object]]:
    library = _library()
    gradients, copies = (torch.ones(count, dtype=torch.bfloat16) for _ in range(2))
    remainders, short_means, short_squares = (
        torch.zeros(count, dtype=torch.int16) for _ in range(3)
    )
    weights, means, squares = (torch.zeros(count) for _ in range(3))
    tensors = {
        "read": [gradients],
        "copied": [gradients, weights, means, squares, copies],
        "adopted": [gradients, weights, means, squares, copies],
        "split": [gradients, remainders, means, squares, copies],
        "rounded": [gradients, remainders, short_means, short_squares, copies],
    }
    pool = ThreadPoolExecutor(num_threads) if num_threads > 1 else None
    units = count // _ALIGNMENT
    ends = [index * units // num_threads * _ALIGNMENT for index in range(num_threads + 1)]

    def run(name: str) -> None:
        function = getattr(library, f"{name}_stream")
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors[name]]

        def run_share(index: int) -> None:
            begin, end = (ctypes.c_int64(ends[place]) for place in (index, index + 1))
            function(*pointers, begin, end)

        if pool is None:
            run_share(0)
        else:
            # A call of a C function leaves the interpreter to the other threads.
            list(pool.map(run_share, range(num_threads)))

    return {name: lambda name=name: run(name) for name in STREAM_BYTES}


@cache
def _library() -> ctypes.CDLL:
    command = shlex.split(get_cxx_compiler())
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "streams.so")
        try:
            subprocess.run(
                [*command, *_FLAGS, str(_SOURCE), "-o", str(target)],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise RuntimeError(
                f"{shlex.join(command)} does not compile {_SOURCE.name} ({said.strip()}); a C++ "
                "compiler is needed to measure memory streams; CXX names another"
            ) from None
        return ctypes.CDLL(str(target))

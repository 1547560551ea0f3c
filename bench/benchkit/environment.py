"""What is fixed for all columns, and what the figures depend on."""

import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

from lightning_mp.__about__ import __version__
from lightning_mp.kernels.capability import describe_kernels

__all__ = [
    "MEMORY_ALLOCATOR",
    "TIMING_ALLOCATOR",
    "describe_environment",
    "describe_load",
    "thread_variables",
]

# Freed memory stays with the process. By default glibc gives tensors above 32 MiB back at every
# free, and a step then pays for page faults, some columns more than others.
TIMING_ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
}
# Every tensor above 64 KiB goes back to the system when it is freed, so that the high-water mark
# counts what is alive, not what is fragmented.
MEMORY_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**16)}

# Instructions that decide how fast half arithmetic is.
_HALF_FLAGS = ("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16", "bf16", "fphp", "asimdhp")


def thread_variables(num_threads: int) -> dict[str, str]:
    """Name the environment variables that fix the number of threads.

    Args:
        num_threads: Number of threads.

    Returns:
        The variables.
    """
    return {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}


def describe_environment(command: str, num_threads: int) -> list[tuple[str, str]]:
    """Say what ran where.

    Args:
        command: The command line.
        num_threads: Number of threads of torch.

    Returns:
        Names and values, in order.
    """
    versions = [f"{name} {version(name)}" for name in ("torch", "lightning")]
    kernels = dict.fromkeys(item.implementation for item in describe_kernels())
    model, flags = _processor()
    return [
        ("Command", f"`{command}`"),
        ("Date", date.today().isoformat()),
        ("Versions", ", ".join([f"lightning_mp {__version__}", *versions])),
        ("Kernels", ", ".join(kernels)),
        ("CPU", f"{model}, {os.cpu_count()} cores; half instructions: {flags}"),
        ("System", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("Threads", str(num_threads)),
        ("Timing allocator", _shown(TIMING_ALLOCATOR)),
        ("Memory allocator", _shown(MEMORY_ALLOCATOR)),
    ]


def describe_load(at_start: float) -> tuple[str, str]:
    """Say how busy the machine was, by its load averages over a minute.

    Args:
        at_start: That before the first measurement; the other is taken now.

    Returns:
        Name and value.
    """
    return "Load average", f"{at_start:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"


def _shown(variables: dict[str, str]) -> str:
    return "glibc, " + " ".join(f"{name}={value}" for name, value in variables.items())


def _processor() -> tuple[str, str]:
    """Return the CPU's name and its half instructions, as the kernel lists them."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    half = [flag for flag in _HALF_FLAGS if flag in flags]
    return fields.get("model name", platform.processor() or "unknown"), ", ".join(half) or "none"

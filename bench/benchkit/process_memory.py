"""What the kernel says of this process's memory."""

import ctypes
import gc
import re
from pathlib import Path

__all__ = ["give_memory_back", "process_bytes", "reset_peak"]


def process_bytes(field: str) -> int:
    """Read a size of this process.

    Args:
        field: ``"VmRSS"``, what is resident, or ``"VmHWM"``, the most that ever was.

    Raises:
        RuntimeError: If the kernel does not tell.
    """
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    if match is None:
        raise RuntimeError(
            f"/proc/self/status has no {field}; expected a Linux kernel; run the benchmark there"
        )
    return int(match[1]) * 1024


def reset_peak() -> None:
    """Let ``VmHWM`` begin again at what is resident."""
    Path("/proc/self/clear_refs").write_text("5")


def give_memory_back() -> None:
    """Collect garbage and give freed memory back to the system; needs glibc."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)

"""Memory of devices, in bytes."""

from lightning_mp.fl.library import fl_operators
from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index
from lightning_mp.fl.torch_module.devices import device_ids

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
]


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Return what is counted of the memory of a device.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        Bytes and counts by name, such as ``"allocated_bytes"`` and ``"num_ooms"``. Temporaries of
        operators count as well. ``"limit_bytes"`` is -1 where there is no limit.
    """
    return dict(fl_operators().memory_statistics(device_index(device)))


def memory_allocated(device: DeviceLike = None) -> int:
    """Return how many bytes are in use; arguments as in ``memory_stats``."""
    return memory_stats(device)["allocated_bytes"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the most bytes that were in use; arguments as in ``memory_stats``."""
    return memory_stats(device)["peak_allocated_bytes"]


def memory_reserved(device: DeviceLike = None) -> int:
    """Return how many bytes are in use or kept for reuse; arguments as in ``memory_stats``."""
    return memory_stats(device)["reserved_bytes"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the most bytes that were reserved; arguments as in ``memory_stats``."""
    return memory_stats(device)["peak_reserved_bytes"]


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let peaks start from what is in use now; arguments as in ``memory_stats``."""
    fl_operators().reset_peak_memory(device_index(device))


def empty_cache() -> None:
    """Give memory that is kept for reuse back, on all devices."""
    for index in device_ids():
        fl_operators().empty_cache(index)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return how many bytes can still be allocated, and how many there are.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        Both numbers.

    Raises:
        RuntimeError: If the device has no limit.
    """
    stats = memory_stats(device)
    limit = stats["limit_bytes"]
    if limit < 0:
        raise RuntimeError(
            f"memory of fl:{device_index(device)} = without a limit; devices with memory_bytes "
            "have one; set it in the DeviceSpec"
        )
    return limit - stats["allocated_bytes"], limit


def memory_summary(device: DeviceLike = None) -> str:
    """Return ``memory_stats`` as a table.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        One line per number.
    """
    stats = memory_stats(device)
    rows = [
        f"fl:{device_index(device)}",
        *(f"  {name:<21} {value:>16,}" for name, value in stats.items()),
    ]
    return "\n".join(rows)

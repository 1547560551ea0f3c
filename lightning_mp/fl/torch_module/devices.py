"""Which devices there are, which is the current one, and waiting for one."""

import torch

from lightning_mp.fl.activation import active_specs
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index
from lightning_mp.fl.torch_module.device_properties import DeviceProperties

__all__ = [
    "current_device",
    "device_count",
    "device_ids",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_initialized",
    "keep_backward_in_this_thread",
    "set_device",
    "synchronize",
]


def device_ids() -> tuple[int, ...]:
    """Return the ids of the devices that are there, in order."""
    return tuple(spec.index for spec in active_specs())


def device_count() -> int:
    """Return the highest id plus one, which is what torch compares ids with.

    Ids are kept when a device vanishes, so there may be fewer devices; ``device_ids`` lists them.
    """
    return max(device_ids(), default=-1) + 1


def is_available() -> bool:
    """Tell whether there is a device."""
    return bool(active_specs())


def is_initialized() -> bool:
    """Tell whether the devices are set up, which they are as soon as ``torch.fl`` is there."""
    return True


def init() -> None:
    """Do nothing: the devices are set up as soon as ``torch.fl`` is there."""


def current_device() -> int:
    """Return the id of the current device of this thread."""
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: DeviceLike) -> None:
    """Choose the current device of this thread.

    If it is on the host, backward passes of this thread run in this thread from now on.

    Args:
        device: A device, its name or its id; an id below 0 changes nothing.

    Raises:
        IndexError: If there is no such device.
    """
    index = device_index(device)
    if index < 0:
        return
    torch._C._accelerator_setDeviceIndex(index)
    if _spec(index).native_type == "cpu":
        keep_backward_in_this_thread()


def keep_backward_in_this_thread() -> None:
    """Let autograd run backward passes of this thread in this thread.

    For an accelerator it takes a thread per device, which for a device of the host only costs time
    and a second set of worker threads.
    """
    torch.autograd.set_multithreading_enabled(False)


def synchronize(device: DeviceLike = None) -> None:
    """Wait until a device has done all its work.

    Args:
        device: A device, its name or its id; None for the current one.
    """
    torch._C._accelerator_synchronizeDevice(device_index(device))


def get_device_name(device: DeviceLike = None) -> str:
    """Return the name of a device.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        Its name for humans.
    """
    return _spec(device_index(device)).name


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Return what is known of a device.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        Its properties.
    """
    spec = _spec(device_index(device))
    native = (
        spec.native_type if spec.native_type == "cpu" else f"{spec.native_type}:{spec.native_index}"
    )
    total_memory = int(spec.memory_bytes * spec.memory_fraction)
    return DeviceProperties(
        spec.name, spec.vendor, native, spec.uid, total_memory, spec.is_simulated
    )


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Return the compute capability of the device underneath.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        Major and minor number; zeros where the device has none.
    """
    spec = _spec(device_index(device))
    get = getattr(torch.get_device_module(spec.native_type), "get_device_capability", None)
    capability = None if get is None else get(spec.native_index)
    return capability if isinstance(capability, tuple) else (0, 0)


def _spec(index: int) -> DeviceSpec:
    for spec in active_specs():
        if spec.index == index:
            return spec
    names = ", ".join(f"fl:{known}" for known in device_ids())
    raise IndexError(f"device index = {index}; there are {names}; use one of them")

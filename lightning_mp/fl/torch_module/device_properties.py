"""What ``torch.fl.get_device_properties`` returns."""

from typing import NamedTuple

__all__ = ["DeviceProperties"]


class DeviceProperties(NamedTuple):
    """Describe a device.

    Args:
        name: Name for humans.
        vendor: Kind of the device underneath, such as ``"cpu"`` or ``"cuda"``.
        native_device: The device underneath, as torch names it.
        uid: What stays the same when devices are renumbered.
        total_memory: Limit of its memory in bytes; 0 if there is none.
        is_simulated: Whether there is no such device, but a simulation for tests.
    """

    name: str
    vendor: str
    native_device: str
    uid: str
    total_memory: int
    is_simulated: bool

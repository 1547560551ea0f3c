"""One row of the list of devices."""

from dataclasses import dataclass

from lightning_mp.fl.device_spec import DeviceSpec

__all__ = ["DeviceRecord"]


@dataclass(frozen=True)
class DeviceRecord:
    """Describe a device that has a logical id, whether it is there now or not.

    Args:
        spec: The device. Of one that is not there, only index, vendor, name and uid are known.
        is_available: Whether it can be used.
        reason: Why not; empty if it can.
        compute: Cores, multiprocessors or architecture, in words.
        num_operators: Operators of torch that run on it; 0 if it is not there.
    """

    spec: DeviceSpec
    is_available: bool = True
    reason: str = ""
    compute: str = ""
    num_operators: int = 0

    @property
    def limit_bytes(self) -> int:
        """Hard limit of its memory; 0 if the capacity is not known."""
        return int(self.spec.memory_bytes * self.spec.memory_fraction)

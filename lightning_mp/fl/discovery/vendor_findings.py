"""What a prober found of its vendor."""

from dataclasses import dataclass

from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.found_device import FoundDevice

__all__ = ["VendorFindings"]


@dataclass(frozen=True)
class VendorFindings:
    """Hold the devices of one vendor in the order of their numbering, and what is missing.

    Args:
        devices: Devices that answered and that the configuration takes.
        absent: What was looked for and is not used.
    """

    devices: tuple[FoundDevice, ...] = ()
    absent: tuple[AbsentDevice, ...] = ()

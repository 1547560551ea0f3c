"""The interface between discovery and one vendor."""

from collections.abc import Callable, Sequence
from typing import Protocol

from lightning_mp.fl.config import DeviceConfig
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor_findings import VendorFindings

__all__ = ["VendorProber"]


class VendorProber(Protocol):
    """Find the devices of one vendor.

    An exception counts as the vendor's absence; the other vendors are found all the same.
    """

    @property
    def vendor(self) -> str:
        """Name of the vendor, as ``devices[].type`` has it."""
        ...

    def probe(
        self, entries: Sequence[DeviceConfig], system: System, log: Callable[[str], None]
    ) -> VendorFindings:
        """Probe the driver, then query the capabilities.

        Args:
            entries: What the configuration asks of this vendor; empty if it has no ``devices``.
            system: What to look at.
            log: Takes one line for each step.

        Returns:
            What is there and what is not.
        """
        ...

"""Find the devices under fl: driver probe, capability query, logical registration."""

from lightning_mp.fl.discovery.absence_reason import AbsenceReason
from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.device_record import DeviceRecord
from lightning_mp.fl.discovery.discover import discover, list_devices
from lightning_mp.fl.discovery.discovery_report import DiscoveryReport
from lightning_mp.fl.discovery.found_device import FoundDevice
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor_findings import VendorFindings
from lightning_mp.fl.discovery.vendor_prober import VendorProber

__all__ = [
    "AbsenceReason",
    "AbsentDevice",
    "DeviceRecord",
    "DiscoveryReport",
    "FoundDevice",
    "System",
    "VendorFindings",
    "VendorProber",
    "discover",
    "list_devices",
]

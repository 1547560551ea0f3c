"""Make the simulated devices that the configuration describes."""

from collections.abc import Callable, Sequence

from lightning_mp.fl.config import DeviceConfig, SimConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery.found_device import UNNUMBERED, FoundDevice
from lightning_mp.fl.discovery.operator_set import count_operators
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor_findings import VendorFindings

__all__ = ["SimProber"]


class SimProber:
    """Make simulated devices; they exist only where they are configured."""

    vendor = "sim"

    def probe(
        self, entries: Sequence[DeviceConfig], system: System, log: Callable[[str], None]
    ) -> VendorFindings:
        """Make one device for each that the entries count.

        Args:
            entries: The simulated devices' entries.
            system: What to look at.
            log: Takes one line for each step.

        Returns:
            The devices in the order of the entries.
        """
        devices: list[FoundDevice] = []
        for entry in entries:
            if not isinstance(entry, SimConfig):
                raise TypeError(f"entry = {entry!r}; allowed: SimConfig; make it with that class")
            devices += [
                _device(entry, len(devices) + place, system) for place in range(entry.count or 1)
            ]
        log(f"sim: driver probe: {len(devices)} simulated devices configured, no hardware")
        return VendorFindings(tuple(devices))


def _device(entry: SimConfig, place: int, system: System) -> FoundDevice:
    unsupported = frozenset(entry.unsupported_operators)
    return FoundDevice(
        spec=DeviceSpec(
            index=UNNUMBERED,
            vendor="sim",
            native_type="cpu",
            native_index=0,
            name=f"simulated device {place}, no hardware",
            uid=f"sim:{place}",
            is_simulated=True,
            memory_bytes=entry.memory_bytes,
            memory_fraction=entry.memory_fraction,
            alignment_bytes=entry.alignment_bytes,
            dtypes=entry.torch_dtypes,
            unsupported_operators=unsupported,
            slowdown=float(entry.slowdown),
        ),
        compute=f"simulated, declared slowdown {entry.slowdown:g}",
        num_operators=count_operators("cpu", system, unsupported),
    )

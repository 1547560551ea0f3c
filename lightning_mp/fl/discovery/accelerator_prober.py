"""Find the devices of one vendor of accelerators, or say at which layer they are lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_mp.fl.config import DeviceConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery.absence_reason import AbsenceReason
from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.driver_state import DriverState, probe_driver
from lightning_mp.fl.discovery.found_device import UNNUMBERED, FoundDevice
from lightning_mp.fl.discovery.identity import identify
from lightning_mp.fl.discovery.operator_set import count_operators
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.torch_answer import TorchAnswer, query_torch
from lightning_mp.fl.discovery.vendor import Vendor
from lightning_mp.fl.discovery.vendor_findings import VendorFindings

__all__ = ["AcceleratorProber"]


@dataclass(frozen=True)
class AcceleratorProber:
    """Probe one vendor: its driver first, then torch.

    Args:
        description: What is looked for.
    """

    description: Vendor

    @property
    def vendor(self) -> str:
        """Name of the vendor."""
        return self.description.name

    def probe(
        self, entries: Sequence[DeviceConfig], system: System, log: Callable[[str], None]
    ) -> VendorFindings:
        """Find the devices; at most as many as the configuration names.

        Args:
            entries: The vendor's entry, if the configuration has one.
            system: What to look at.
            log: Takes one line for each step.

        Returns:
            Devices in the order of their PCI addresses, and what is missing.
        """
        entry = entries[0] if entries else None
        driver = probe_driver(self.description, system)
        log(f"{self.vendor}: driver probe: {driver}")
        answer = query_torch(self.description, system)
        for line in _describe(self.description, answer):
            log(f"{self.vendor}: capability query: {line}")
        if not answer.devices:
            reason, detail = _explain(self.description, driver, answer, system)
            if entry is None and reason is AbsenceReason.NO_DEVICE and not answer.error:
                return VendorFindings()
            return VendorFindings(absent=(_absent(self.vendor, reason, detail, entry),))
        found = self._found(answer, system, entry, log)
        return _select(self.vendor, found, answer, entry)

    def _found(
        self,
        answer: TorchAnswer,
        system: System,
        entry: DeviceConfig | None,
        log: Callable[[str], None],
    ) -> tuple[FoundDevice, ...]:
        devices = sorted(answer.devices, key=lambda device: (device.pci_address, device.index))
        uids, kind = identify(self.vendor, devices, system.host_id)
        log(f"{self.vendor}: identity by {kind}")
        num_operators = count_operators(self.description.native_type, system)
        return tuple(
            FoundDevice(
                spec=DeviceSpec(
                    index=UNNUMBERED,
                    vendor=self.vendor,
                    native_type=self.description.native_type,
                    native_index=device.index,
                    name=device.name,
                    uid=uid,
                    memory_bytes=device.memory_bytes,
                    memory_fraction=1.0 if entry is None else entry.memory_fraction,
                    dtypes=_dtypes(self.description),
                ),
                compute=device.compute,
                num_operators=num_operators,
            )
            for device, uid in zip(devices, uids, strict=True)
        )


def _describe(vendor: Vendor, answer: TorchAnswer) -> list[str]:
    if not answer.is_built:
        return [f"this torch has no {vendor.name}"]
    lines = [
        f"{vendor.native_type}:{device.index} is {device.name}, {device.memory_bytes} bytes"
        + (f", {device.compute}" if device.compute else "")
        for device in answer.devices
    ]
    lines += [f"torch warned: {text}" for text in answer.said]
    lines += list(answer.silent)
    if answer.error:
        lines.append(f"torch raised {answer.error}")
    return lines or ["no device answers"]


def _explain(
    vendor: Vendor, driver: DriverState, answer: TorchAnswer, system: System
) -> tuple[AbsenceReason, str]:
    """Name the lowest layer that keeps the devices out, and the others behind it."""
    problems = [] if driver.problem is None else [driver.problem]
    version = system.torch.__version__
    if not answer.is_built and driver.is_present:
        text = f"torch {version} has no {vendor.name}; install a build of torch that has it"
        problems.append((AbsenceReason.NOT_IN_THIS_TORCH, text))
    failed = answer.error or "; ".join(answer.silent)
    if failed:
        problems.append((AbsenceReason.QUERY_FAILED, failed))
    set_here = [name for name in vendor.variables if name in system.environ]
    if not problems and set_here:
        values = " and ".join(f"{name}={system.environ[name]!r}" for name in set_here)
        problems.append((AbsenceReason.HIDDEN, f"{values}; unset it to see all"))
    if not problems:
        said = f" ({'; '.join(answer.said)})" if answer.said else ""
        text = (
            f"driver and device nodes are there, but torch {version} finds no device{said}; the "
            "driver may be too old for it"
        )
        problems.append((AbsenceReason.NOT_ANSWERING, text))
    return problems[0][0], "; also: ".join(detail for _, detail in problems)


def _select(
    vendor: str, found: tuple[FoundDevice, ...], answer: TorchAnswer, entry: DeviceConfig | None
) -> VendorFindings:
    absent = [
        _absent(vendor, AbsenceReason.QUERY_FAILED, text, entry=None) for text in answer.silent
    ]
    count = None if entry is None else entry.count
    if count is None:
        return VendorFindings(found, tuple(absent))
    if count > len(found):
        detail = f"count = {count}, {len(found)} answer; lower count, or make the others visible"
        absent.append(_absent(vendor, AbsenceReason.TOO_FEW, detail, entry))
    absent += [
        _absent(
            vendor,
            AbsenceReason.NOT_CONFIGURED,
            f"{device.spec.native_type}:{device.spec.native_index} ({device.spec.name}) is beyond "
            f"count = {count}",
            entry=None,
        )
        for device in found[count:]
    ]
    return VendorFindings(found[:count], tuple(absent))


def _absent(
    vendor: str, reason: AbsenceReason, detail: str, entry: DeviceConfig | None
) -> AbsentDevice:
    where = "" if entry is None else entry.where
    return AbsentDevice(vendor, reason, detail, where, is_configured=entry is not None)


def _dtypes(vendor: Vendor) -> frozenset[torch.dtype] | None:
    if not vendor.missing_dtypes:
        return None
    known: list[Any] = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return frozenset(known) - {getattr(torch, name) for name in vendor.missing_dtypes}

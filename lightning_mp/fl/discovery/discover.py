"""Find every device, vendor by vendor, and give each its logical id."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lightning_mp.fl.config import DeviceConfig, FlConfig, LoggingConfig, load_config
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery.absence_reason import AbsenceReason
from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.accelerator_prober import AcceleratorProber
from lightning_mp.fl.discovery.cpu_prober import CpuProber
from lightning_mp.fl.discovery.device_record import DeviceRecord
from lightning_mp.fl.discovery.discovery_report import DiscoveryReport
from lightning_mp.fl.discovery.driver_state import probe_driver
from lightning_mp.fl.discovery.found_device import FoundDevice
from lightning_mp.fl.discovery.id_file import IdFile
from lightning_mp.fl.discovery.id_table import MAX_DEVICES, IdTable
from lightning_mp.fl.discovery.sim_prober import SimProber
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor import VENDORS
from lightning_mp.fl.discovery.vendor_findings import VendorFindings
from lightning_mp.fl.discovery.vendor_prober import VendorProber
from lightning_mp.fl.log import apply_logging, log_line

__all__ = ["discover", "list_devices"]

_HOST_VENDORS = ("cpu", "sim")


def discover(
    config: FlConfig | None = None,
    *,
    system: System | None = None,
    probers: Sequence[VendorProber] | None = None,
    writes: bool = True,
) -> DiscoveryReport:
    """Find the devices of this machine.

    A vendor that fails is reported, never raised. Accelerators come first, then what the
    configuration makes of the CPU and simulated devices, each in the order of its entries.
    Without ``devices`` in the configuration every accelerator is used, and the CPU only where
    there is none.

    Args:
        config: What to use; None for what ``load_config`` loads.
        system: The machine to look at; None for this one.
        probers: One for each vendor; None for all that are known.
        writes: Whether files may be written: the ids of new devices, the log of the configuration.

    Returns:
        The devices, and what is not used and why.

    Raises:
        ValueError: The file of the configuration holds something that is not allowed.
        OSError: It cannot be read.

    Example:
        >>> [spec.index for spec in discover().specs]  # doctest: +SKIP
        [0]
    """
    config = load_config() if config is None else config
    system = System() if system is None else system
    # Without that section the level stays what the program has set.
    if writes and config.logging != LoggingConfig():
        apply_logging(config.logging)
    log: list[str] = []

    def write(line: str) -> None:
        log.append(line)
        log_line(line)

    write(f"config: {config.source or 'defaults'}, {len(config.devices)} entries of devices")
    findings = _probe_all(config, system, _default_probers() if probers is None else probers, write)
    devices = [device for found in findings for device in found.devices]
    id_file = IdFile(system.folder, system.host_id, write)
    # A CPU that nobody asked for must not take the first id from an accelerator to come.
    is_stand_in = not config.devices and all(d.spec.vendor == "cpu" for d in devices)
    keep = writes and not is_stand_in
    table = id_file.register(devices) if keep else id_file.read(devices)
    records = _records(devices, table)
    for record in records:
        spec = record.spec
        what = f"{spec.uid} ({spec.name})" if record.is_available else record.reason
        write(f"logical registration: fl:{spec.index} = {what}")
    absent = [absent for found in findings for absent in found.absent]
    absent += [
        _without_id(device, id_file, is_configured=bool(config.devices))
        for device in devices
        if table.index_of(device.spec.uid) is None
    ]
    return DiscoveryReport(records, tuple(absent), tuple(log), config, id_file.path)


def list_devices(config: FlConfig | None = None) -> tuple[DeviceRecord, ...]:
    """List the devices that have a logical id.

    Args:
        config: As in ``discover``.

    Returns:
        In the order of their ids: those that can be used, and those that are known from an
        earlier start and are not there now.

    Raises:
        ValueError: The file of the configuration holds something that is not allowed.
        OSError: It cannot be read.

    Example:
        >>> list_devices()[0].spec.name  # doctest: +SKIP
        'AMD EPYC 9B14, cores 0-7'
    """
    return discover(config).records


def _default_probers() -> list[VendorProber]:
    return [*map(AcceleratorProber, VENDORS), CpuProber(), SimProber()]


def _probe_all(
    config: FlConfig,
    system: System,
    probers: Sequence[VendorProber],
    log: Callable[[str], None],
) -> list[VendorFindings]:
    """Probe in the order of numbering: accelerators, then the others, each by the config."""
    types = [device.type for device in config.devices]
    order = {name: place for place, name in reversed(list(enumerate(types)))}
    findings: list[VendorFindings] = []
    ordered = sorted(
        probers,
        key=lambda prober: (prober.vendor in _HOST_VENDORS, order.get(prober.vendor, len(types))),
    )
    for prober in ordered:
        entries = [device for device in config.devices if device.type == prober.vendor]
        is_alone = prober.vendor == "cpu" and not any(found.devices for found in findings)
        is_wanted = bool(entries) or (
            not types and (prober.vendor not in _HOST_VENDORS or is_alone)
        )
        if is_wanted:
            findings.append(_probe(prober, entries, system, log))
        elif prober.vendor not in _HOST_VENDORS:
            findings.append(_look_only(prober.vendor, system, log))
    return findings


def _probe(
    prober: VendorProber,
    entries: Sequence[DeviceConfig],
    system: System,
    log: Callable[[str], None],
) -> VendorFindings:
    try:
        return prober.probe(entries, system, log)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        log(f"{prober.vendor}: probe failed: {detail}")
        where = entries[0].where if entries else ""
        absent = AbsentDevice(
            prober.vendor, AbsenceReason.QUERY_FAILED, detail, where, is_configured=bool(entries)
        )
        return VendorFindings(absent=(absent,))


def _look_only(vendor: str, system: System, log: Callable[[str], None]) -> VendorFindings:
    """Say that cards are there which the configuration leaves out; torch is not asked."""
    for description in VENDORS:
        if description.name == vendor and (state := probe_driver(description, system)).is_present:
            log(f"{vendor}: driver probe: {state}; not in the config")
            detail = f"{state}; add an entry with type: {vendor} to use it"
            return VendorFindings(
                absent=(AbsentDevice(vendor, AbsenceReason.NOT_CONFIGURED, detail),)
            )
    return VendorFindings()


def _records(devices: Sequence[FoundDevice], table: IdTable) -> tuple[DeviceRecord, ...]:
    by_uid = {device.spec.uid: device for device in devices}
    records = []
    for entry in table.entries:
        device = by_uid.get(entry.uid)
        if device is None:
            gone = DeviceSpec(entry.index, entry.vendor, entry.vendor, 0, entry.name, entry.uid)
            reason = f"{entry.uid} ({entry.name}) is known from an earlier start, not found now"
            records.append(DeviceRecord(gone, is_available=False, reason=reason))
        else:
            spec = replace(device.spec, index=entry.index)
            records.append(
                DeviceRecord(spec, compute=device.compute, num_operators=device.num_operators)
            )
    return tuple(records)


def _without_id(device: FoundDevice, id_file: IdFile, *, is_configured: bool) -> AbsentDevice:
    detail = (
        f"{device.spec.name} is the next after {MAX_DEVICES} devices that have an id, with those "
        f"that are gone; delete {id_file.path} to number anew"
    )
    return AbsentDevice(
        device.spec.vendor, AbsenceReason.NO_ID, detail, is_configured=is_configured
    )

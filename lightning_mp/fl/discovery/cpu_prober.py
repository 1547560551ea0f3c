"""Make devices of the CPU: the whole of it, or partitions of its cores."""

import platform
from collections.abc import Callable, Sequence
from itertools import pairwise

from lightning_mp.fl.config import CpuConfig, DeviceConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery.absence_reason import AbsenceReason
from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.found_device import UNNUMBERED, FoundDevice
from lightning_mp.fl.discovery.host_memory import usable_memory_bytes
from lightning_mp.fl.discovery.operator_set import count_operators
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor_findings import VendorFindings

__all__ = ["CpuProber", "format_cores", "split_cores"]


class CpuProber:
    """Find the CPU; it always answers.

    The k-th CPU device of a configuration keeps its identity whatever its cores are, because a
    batch system may give a process other cores at each start.
    """

    vendor = "cpu"

    def probe(
        self, entries: Sequence[DeviceConfig], system: System, log: Callable[[str], None]
    ) -> VendorFindings:
        """Make the partitions that the configuration names; one of all cores without it.

        Args:
            entries: The CPU's entries.
            system: What to look at.
            log: Takes one line for each step.

        Returns:
            The partitions in the order of the entries, and entries whose cores are not usable.
        """
        model, memory_bytes = _model(system), usable_memory_bytes(system)
        log(f"cpu: driver probe: {model}, {_name_cores(system.cores)} usable")
        num_operators = count_operators("cpu", system)
        log(f"cpu: capability query: {memory_bytes} bytes, {num_operators} operators, all dtypes")
        parts: list[tuple[int, tuple[int, ...], float]] = []
        absent, num_places = [], 0
        for entry in entries or [CpuConfig()]:
            if not isinstance(entry, CpuConfig):
                raise TypeError(f"entry = {entry!r}; allowed: CpuConfig; make it with that class")
            closed = sorted(set(entry.cores) - set(system.cores))
            if closed:
                absent.append(_not_usable(entry, closed, system))
            else:
                parts += [
                    (num_places + part, cores, entry.memory_fraction)
                    for part, cores in enumerate(_parts(entry, system, log))
                ]
            # An entry that is out keeps its places, so that the others keep their identities.
            num_places += entry.count or 1
        return VendorFindings(
            devices=tuple(
                FoundDevice(
                    spec=DeviceSpec(
                        index=UNNUMBERED,
                        vendor="cpu",
                        native_type="cpu",
                        native_index=0,
                        name=f"{model}, {_name_cores(cores or system.cores)}",
                        uid=f"cpu:{system.host_id}/{place}",
                        cores=cores,
                        memory_bytes=memory_bytes // num_places,
                        memory_fraction=fraction,
                    ),
                    compute=_count_cores(cores or system.cores),
                    num_operators=num_operators,
                )
                for place, cores, fraction in parts
            ),
            absent=tuple(absent),
        )


def split_cores(cores: Sequence[int], num_parts: int) -> list[tuple[int, ...]]:
    """Split cores into contiguous parts whose sizes differ by one at most.

    Args:
        cores: Numbers of the cores.
        num_parts: Number of parts. Where there are fewer cores, parts share them in turn.

    Returns:
        One tuple of cores for each part.

    Example:
        >>> split_cores([0, 1, 2, 3, 4], 2)
        [(0, 1, 2), (3, 4)]
        >>> split_cores([0, 1], 3)
        [(0,), (1,), (0,)]
    """
    if num_parts > len(cores):
        return [(cores[part % len(cores)],) for part in range(num_parts)]
    size, larger = divmod(len(cores), num_parts)
    ends = [0]
    for part in range(num_parts):
        ends.append(ends[-1] + size + (part < larger))
    return [tuple(cores[start:end]) for start, end in pairwise(ends)]


def format_cores(cores: Sequence[int]) -> str:
    """Write core numbers as ranges.

    Example:
        >>> format_cores([0, 1, 2, 5])
        '0-2,5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _name_cores(cores: Sequence[int]) -> str:
    return f"core{_plural(cores)} {format_cores(cores)}"


def _count_cores(cores: Sequence[int]) -> str:
    return f"{len(cores)} core{_plural(cores)}"


def _plural(cores: Sequence[int]) -> str:
    return "" if len(cores) == 1 else "s"


def _parts(entry: CpuConfig, system: System, log: Callable[[str], None]) -> list[tuple[int, ...]]:
    count, cores = entry.count or 1, tuple(sorted(entry.cores)) or system.cores
    if count == 1:
        return [tuple(sorted(entry.cores))]
    if count > len(cores):
        log(f"cpu: {count} partitions share {len(cores)} cores")
    return split_cores(cores, count)


def _not_usable(entry: CpuConfig, closed: list[int], system: System) -> AbsentDevice:
    return AbsentDevice(
        "cpu",
        AbsenceReason.NOT_ALLOWED_HERE,
        f"cores {format_cores(closed)} are not among the {format_cores(system.cores)} that this "
        "process may use; change cores or the process's affinity",
        entry.where,
        is_configured=True,
    )


def _model(system: System) -> str:
    for line in system.read("proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"

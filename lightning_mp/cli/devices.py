"""``lightning-mp devices``: the devices that fl found, and why others are not used."""

import json
from typing import Any

import torch

from lightning_mp.fl.discovery import DeviceRecord, DiscoveryReport

__all__ = ["collect_devices", "format_devices", "summarise_devices"]

_COLUMNS = ("id", "vendor", "name", "memory", "limit", "dtypes", "compute", "simulated")


def collect_devices(report: DiscoveryReport) -> dict[str, Any]:
    """Collect what ``lightning-mp devices`` prints.

    Args:
        report: Result of ``discover``.

    Returns:
        A dictionary that JSON can hold, with the keys ``config``, ``state_file``, ``devices``,
        ``not_used`` and ``log``.
    """
    return {
        "config": _text(report.config.source),
        "state_file": _text(report.state_file),
        "devices": [_device(record) for record in report.records],
        "not_used": [
            {
                "vendor": absent.vendor,
                "reason": absent.reason.value,
                "detail": absent.detail,
                "is_configured": absent.is_configured,
                "where": absent.where,
            }
            for absent in report.absent
        ],
        "log": list(report.log),
    }


def format_devices(report: DiscoveryReport, *, has_log: bool = False, as_json: bool = False) -> str:
    """Write the devices as text or as JSON.

    Args:
        report: Result of ``discover``.
        has_log: Whether the text ends with the steps of the search; JSON always has them.
        as_json: Whether to write JSON.

    Returns:
        The text, without a final newline.
    """
    if as_json:
        return json.dumps(collect_devices(report), indent=2)
    usable = [record for record in report.records if record.is_available]
    gone = [f"fl:{r.spec.index}: {r.reason}" for r in report.records if not r.is_available]
    not_used = [*gone, *map(str, report.absent)]
    sections = {
        "Devices": _table([_COLUMNS, *map(_row, usable)]) if usable else ["none"],
        "Not used": not_used or ["nothing else was found"],
        "Files": [
            f"config: {report.config.source or 'none, so the defaults'}",
            f"ids: {report.state_file or 'not kept, as there is no home'}",
        ],
    }
    if has_log:
        sections["Steps"] = list(report.log)
    return "\n".join(
        line for title, lines in sections.items() for line in (title, *(f"  {x}" for x in lines))
    )


def summarise_devices(report: DiscoveryReport) -> str:
    """Name the devices in one line, for ``lightning-mp info``.

    Args:
        report: Result of ``discover``.

    Returns:
        The line.
    """
    names = [f"fl:{spec.index} = {spec.name}" for spec in report.specs] or ["no device"]
    missing = sum(absent.is_configured for absent in report.absent)
    more = f"; {missing} named in the config and not there" if missing else ""
    return f"{'; '.join(names)}{more}; lightning-mp devices says more"


def _device(record: DeviceRecord) -> dict[str, Any]:
    spec = record.spec
    return {
        "id": spec.index,
        "vendor": spec.vendor,
        "native_device": f"{spec.native_type}:{spec.native_index}",
        "name": spec.name,
        "uid": spec.uid,
        "is_available": record.is_available,
        "reason": record.reason,
        "is_simulated": spec.is_simulated,
        "cores": list(spec.cores),
        "memory_bytes": spec.memory_bytes,
        "limit_bytes": record.limit_bytes,
        "dtypes": None if spec.dtypes is None else _dtype_names(spec.dtypes),
        "unsupported_operators": sorted(spec.unsupported_operators),
        "num_operators": record.num_operators,
        "compute": record.compute,
    }


def _row(record: DeviceRecord) -> tuple[str, ...]:
    spec = record.spec
    return (
        f"fl:{spec.index}",
        spec.vendor,
        spec.name,
        _size(spec.memory_bytes),
        _size(record.limit_bytes),
        "all" if spec.dtypes is None else " ".join(_dtype_names(spec.dtypes)),
        record.compute or "unknown",
        "yes" if spec.is_simulated else "no",
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes else "unknown"


def _dtype_names(dtypes: frozenset[torch.dtype]) -> list[str]:
    return sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _text(path: object) -> str | None:
    return None if path is None else str(path)

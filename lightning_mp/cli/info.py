"""``lightning-mp info``: what is installed, what is active, and what never ran here."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lightning_mp.__about__ import __version__
from lightning_mp.amp.native_library import load_native_library, native_report
from lightning_mp.cli.devices import summarise_devices
from lightning_mp.connector import NO_PATCH_VARIABLE, is_opted_out, patched_objects
from lightning_mp.fl.discovery import discover
from lightning_mp.fl.library import load_fl_library
from lightning_mp.kernels.capability import KernelStatus, describe_kernels
from lightning_mp.lightning_package import PACKAGE

__all__ = ["collect_info", "format_info"]

_DISTRIBUTIONS = (PACKAGE or "lightning", "torch", "torchmetrics", "jsonargparse")
# Device types this suite has code paths for, beside the CPU.
_ACCELERATORS = ("cuda", "xpu", "mps")


def collect_info() -> dict[str, Any]:
    """Collect what ``lightning-mp info`` prints.

    Returns:
        A dictionary that JSON can hold, with the keys ``versions``, ``devices``, ``fl``,
        ``kernels``, ``patches`` and ``never_ran_here``.

    Example:
        >>> list(collect_info())
        ['versions', 'devices', 'fl', 'kernels', 'patches', 'never_ran_here']
    """
    devices = [_cpu(), *_accelerators()]
    return {
        "versions": _versions(),
        "devices": devices,
        "fl": _fl(),
        "kernels": [status._asdict() for status in _kernels()],
        "patches": _patches(),
        "never_ran_here": _never_ran_here({device["type"] for device in devices}),
    }


def format_info(info: dict[str, Any], *, as_json: bool = False) -> str:
    """Write the information as text or as JSON.

    Args:
        info: Result of ``collect_info``.
        as_json: Whether to write JSON.

    Returns:
        The text, without a final newline.
    """
    if as_json:
        return json.dumps(info, indent=2)
    patches = info["patches"]
    sections = {
        "Versions": [f"{name:<17} {number}" for name, number in info["versions"].items()],
        "Devices": [f"{device['name']}: {device['details']}" for device in info["devices"]],
        "fl": [info["fl"]],
        "Kernels": [
            "{operations}: {implementation}; {reason}".format(**k) for k in info["kernels"]
        ],
        f"Patches: {'installed' if patches['is_installed'] else 'not installed'}": [
            patches["reason"],
            *patches["objects"],
        ],
        "Never ran on this machine": info["never_ran_here"] or ["nothing known"],
    }
    return "\n".join(
        line for title, lines in sections.items() for line in (title, *(f"  {x}" for x in lines))
    )


def _versions() -> dict[str, str]:
    return {
        "lightning_mp": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _DISTRIBUTIONS},
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> dict[str, str]:
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "type": "cpu",
        "name": "cpu",
        "details": f"{platform.machine()}, {capability}, {torch.get_num_threads()} threads",
    }


def _accelerators() -> list[dict[str, str]]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return []
    return [
        {
            "type": accelerator.type,
            "name": f"{accelerator.type}:{index}",
            "details": _device_name(accelerator.type, index),
        }
        for index in range(torch.accelerator.device_count())
    ]


def _device_name(device_type: str, index: int) -> str:
    """Ask the backend for the name; not every backend has one to give."""
    module = torch.get_device_module(device_type)
    get_name = getattr(module, "get_device_name", None)
    return get_name(index) if get_name is not None else platform.machine()


def _kernels() -> list[KernelStatus]:
    return [*describe_kernels(check=True), _fl_device(), *_o1_casts()]


def _fl_device() -> KernelStatus:
    library = load_fl_library()
    implementation = "C++ library" if library.is_loaded else "not available"
    return KernelStatus("Device fl", implementation, library.reason)


def _fl() -> str:
    """Name the devices of fl; nothing is written, and a broken config is no reason to stop."""
    try:
        return summarise_devices(discover(writes=False))
    except (OSError, ValueError) as error:
        return f"not usable: {error}"


def _o1_casts() -> list[KernelStatus]:
    """Say per device type who casts at O1; nothing is registered."""
    library, reason = load_native_library()
    if library is None:
        return [KernelStatus("O1 casts", "Python mode", reason)]
    return [
        KernelStatus(
            operations=f"O1 casts on {slots.device_type}",
            implementation="C++ kernels",
            reason=(
                f"{reason}; {slots.num_ours} operators by them, {slots.num_taken} by torch.autocast"
                + (f", otherwise than at O1: {', '.join(slots.differing)}" * bool(slots.differing))
            ),
        )
        for slots in native_report()
    ]


def _patches() -> dict[str, Any]:
    objects = list(patched_objects())
    if objects:
        reason = "put in by import lightning_mp; uninstall() takes them out"
    elif is_opted_out():
        reason = f"{NO_PATCH_VARIABLE} = {os.environ[NO_PATCH_VARIABLE]!r}"
    else:
        reason = "uninstall() was called"
    return {"is_installed": bool(objects), "reason": reason, "objects": objects}


def _never_ran_here(present: set[str]) -> list[str]:
    return [
        f"{device_type} paths: no {device_type} device here"
        for device_type in _ACCELERATORS
        if device_type not in present
    ]

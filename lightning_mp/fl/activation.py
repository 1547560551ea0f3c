"""Turns the device type on, once per process: torch can rename its slot for plugins only once."""

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.library import fl_operators
from lightning_mp.fl.spec_checks import check_specs

if TYPE_CHECKING:
    from lightning_mp.fl.config import FallbackConfig
    from lightning_mp.fl.discovery import DiscoveryReport

__all__ = ["activate", "active_specs", "device", "is_active"]

_UNNAMED = "privateuseone"
_lock = threading.Lock()
# The devices of this process, empty until it is active; torch cannot take a device type back.
_active: list[DeviceSpec] = []


def activate(specs: Sequence[DeviceSpec] | None = None) -> None:
    """Make ``torch.device("fl")`` exist, with these devices; does nothing if they are there.

    Afterwards ``torch.accelerator`` is fl. Where all devices are on the host, backward passes of
    the calling thread run in this thread, which is what the CPU does as well.

    Args:
        specs: The devices; None for those that are active, or, if none is, for those that
            ``discover()`` finds by the configuration, whose section ``fallback`` is set as well.

    Raises:
        ValueError: If a device, or the configuration, is not as it has to be.
        OSError: If the file of the configuration cannot be read.
        RuntimeError: If the native library is not there, another plugin has torch's place for
            devices of plugins, a device that the configuration names is missing, or other devices
            are active.
    """
    with _lock:
        if _active:
            _check_same(specs)
            return
        operators = fl_operators()
        _check_slot(operators)
        report = _find_devices() if specs is None else None
        chosen = tuple(specs or ()) if report is None else report.specs
        check_specs(chosen)
        for spec in chosen:
            _add_device(operators, spec)
        operators.activate()
        _register_module()
        _active.extend(chosen)
    _settle(chosen, None if report is None else report.config.fallback)


def is_active() -> bool:
    """Tell whether ``torch.device("fl")`` exists.

    Returns:
        Whether ``activate`` was called in this process.
    """
    return bool(_active)


def active_specs() -> tuple[DeviceSpec, ...]:
    """Return the devices of this process.

    Returns:
        The devices, in the order of their ids; none before ``activate``.
    """
    return tuple(sorted(_active, key=lambda spec: spec.index))


def device(index: int | None = None) -> torch.device:
    """Return a device of fl, and activate fl if it is not.

    Args:
        index: Id of the device; None for the current one.

    Returns:
        The device.

    Raises:
        IndexError: If there is no device of this id.
    """
    activate()
    indices = [spec.index for spec in active_specs()]
    if index is None:
        index = torch.get_device_module("fl").current_device()
    if index not in indices:
        names = ", ".join(f"fl:{known}" for known in indices)
        raise IndexError(f"device index = {index}; there are {names}; use one of them")
    return torch.device("fl", index)


def _check_same(specs: Sequence[DeviceSpec] | None) -> None:
    if specs is not None and list(specs) != _active:
        raise RuntimeError(
            f"devices of fl = {[spec.uid for spec in specs]}; this process has "
            f"{[spec.uid for spec in _active]} already; start another process for other devices"
        )


def _find_devices() -> "DiscoveryReport":
    # Not part of what a program pays that imports lightning_mp and has no use for fl.
    from lightning_mp.fl.discovery import discover

    report = discover()
    report.require_configured()
    return report


def _check_slot(operators: object) -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name != _UNNAMED:
        raise RuntimeError(
            f"device type fl = not available; torch has one place for devices of plugins, and "
            f"{name!r} has taken it; start a process that does not import that plugin"
        )
    operators.check_slot()  # type: ignore[attr-defined]  # an operator of the native library


def _add_device(operators: object, spec: DeviceSpec) -> None:
    limit_bytes = int(spec.memory_fraction * spec.memory_bytes) if spec.memory_bytes else -1
    dtypes = sorted(str(dtype).removeprefix("torch.") for dtype in spec.dtypes or ())
    native = torch.device(
        spec.native_type, *([spec.native_index] if spec.native_type != "cpu" else [])
    )
    operators.add_device(  # type: ignore[attr-defined]  # an operator of the native library
        spec.index,
        spec.vendor,
        native,
        spec.name,
        spec.uid,
        spec.is_simulated,
        limit_bytes,
        spec.alignment_bytes,
        dtypes,
        sorted(spec.unsupported_operators),
        spec.slowdown,
    )


def _register_module() -> None:
    from lightning_mp.fl import torch_module

    rename_privateuse1_backend("fl")
    torch._register_device_module("fl", torch_module)
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )


def _settle(specs: Sequence[DeviceSpec], fallback: "FallbackConfig | None") -> None:
    from lightning_mp.fl import routes, torch_module

    if fallback is not None:
        routes.set_routes(**asdict(fallback))

    # As if fl had been there when torch.manual_seed was called.
    torch_module.manual_seed_all(torch.initial_seed())
    if all(spec.native_type == "cpu" for spec in specs):
        torch_module.keep_backward_in_this_thread()

"""Second step of discovery: what torch says of a device type."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning_mp.fl.discovery.native_device import NativeDevice
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor import Vendor

__all__ = ["TorchAnswer", "query_torch"]


@dataclass(frozen=True)
class TorchAnswer:
    """Hold what torch answered for one vendor.

    Args:
        is_built: Whether this torch has the vendor's part.
        devices: Devices that answered.
        silent: Indices that did not, with their errors.
        error: What a failed query raised; empty if none did.
        said: Warnings of torch during the query.
    """

    is_built: bool
    devices: tuple[NativeDevice, ...] = ()
    silent: tuple[str, ...] = ()
    error: str = ""
    said: tuple[str, ...] = ()


def query_torch(vendor: Vendor, system: System) -> TorchAnswer:
    """Ask torch for the devices of a vendor; nothing that it raises or warns of gets out.

    Args:
        vendor: Whom to ask for.
        system: Holds torch.

    Returns:
        The devices or what kept them from answering.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = _query(vendor, system)
    said = tuple(dict.fromkeys(first_line(warning.message) for warning in caught))
    return TorchAnswer(answer.is_built, answer.devices, answer.silent, answer.error, said)


def first_line(error: object) -> str:
    """Shorten an error or a warning of torch to its first line."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _query(vendor: Vendor, system: System) -> TorchAnswer:
    # Drivers raise anything; a vendor that cannot be asked must not keep the others out.
    try:
        if not vendor.is_built(system.torch):
            return TorchAnswer(is_built=False)
        module = getattr(system.torch, vendor.native_type)
        num_devices = module.device_count() if module.is_available() else 0
    except Exception as error:
        return TorchAnswer(is_built=True, error=f"{type(error).__name__}: {first_line(error)}")
    answers = [_answer(vendor, module, index) for index in range(num_devices)]
    return TorchAnswer(
        is_built=True,
        devices=tuple(answer for answer in answers if isinstance(answer, NativeDevice)),
        silent=tuple(answer for answer in answers if isinstance(answer, str)),
    )


def _answer(vendor: Vendor, module: Any, index: int) -> NativeDevice | str:
    try:
        return _device(vendor, module, index)
    except Exception as error:
        return f"{vendor.native_type}:{index}: {type(error).__name__}: {first_line(error)}"


def _device(vendor: Vendor, module: Any, index: int) -> NativeDevice:
    get_properties = getattr(module, "get_device_properties", None)
    properties: Any = get_properties(index) if get_properties is not None else None
    return NativeDevice(
        index=index,
        name=str(getattr(properties, "name", "") or _ask(module, "get_device_name", index))
        or f"{vendor.maker} device",
        memory_bytes=int(
            getattr(properties, "total_memory", 0) or _ask(module, "recommended_max_memory") or 0
        ),
        compute=_compute(vendor, properties),
        uuid=_uuid(properties),
        pci_address=_pci_address(properties),
    )


def _ask(module: Any, name: str, *args: int) -> Any:
    function: Callable[..., Any] | None = getattr(module, name, None)
    return "" if function is None else function(*args)


def _compute(vendor: Vendor, properties: Any) -> str:
    parts = {
        "gcnArchName": "architecture {}",
        "multi_processor_count": "{} multiprocessors",
        "max_compute_units": "{} compute units",
    }
    words = [
        text.format(getattr(properties, name))
        for name, text in parts.items()
        if getattr(properties, name, None)
    ]
    if vendor.name == "cuda" and hasattr(properties, "major"):
        words.insert(0, f"compute capability {properties.major}.{properties.minor}")
    return ", ".join(words)


def _uuid(properties: Any) -> str:
    text = str(getattr(properties, "uuid", "") or "")
    # Drivers without one give zeros.
    return text if text.strip("0-") else ""


def _pci_address(properties: Any) -> str:
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    domain = getattr(properties, "pci_domain_id", 0)
    return f"{domain:04x}:{bus:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"

"""Identities that outlive a start of the program."""

from collections.abc import Callable, Sequence

from lightning_mp.fl.discovery.native_device import NativeDevice

__all__ = ["identify"]


def identify(
    vendor: str, devices: Sequence[NativeDevice], host_id: str
) -> tuple[tuple[str, ...], str]:
    """Give each device of a vendor an identity: by UUID, else by PCI address, else by index.

    All devices of a vendor get the same kind, the first that tells all of them apart.

    Args:
        vendor: Name of the vendor.
        devices: Its devices.
        host_id: Name of the host, for identities that mean nothing on another one.

    Returns:
        The identities in the order of the devices, and which kind they are.

    Example:
        >>> identify("xpu", [NativeDevice(0, "Arc", 1, pci_address="0000:03:00.0")], "host")
        (('xpu:host/0000:03:00.0',), 'PCI address')
    """
    kinds: dict[str, Callable[[NativeDevice], str]] = {
        "UUID": lambda device: device.uuid and f"{vendor}:{_with_prefix(device.uuid)}",
        "PCI address": lambda device: (
            device.pci_address and f"{vendor}:{host_id}/{device.pci_address}"
        ),
    }
    for kind, make in kinds.items():
        uids = tuple(make(device) for device in devices)
        if all(uids) and len(set(uids)) == len(uids):
            return uids, kind
    return tuple(f"{vendor}:{host_id}/{device.index}" for device in devices), "index"


def _with_prefix(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"

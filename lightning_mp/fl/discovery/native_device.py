"""One device as torch describes it."""

from dataclasses import dataclass

__all__ = ["NativeDevice"]


@dataclass(frozen=True)
class NativeDevice:
    """Hold the properties of a device that do not depend on the vendor.

    Args:
        index: Index in torch.
        name: Name of the model.
        memory_bytes: Memory; 0 if torch does not know.
        compute: Architecture and number of units, in words.
        uuid: Unique id of the device; empty if it has none.
        pci_address: Place on the PCI bus; empty if torch does not know.
    """

    index: int
    name: str
    memory_bytes: int
    compute: str = ""
    uuid: str = ""
    pci_address: str = ""

"""Accelerator cards on the PCI bus, as the kernel lists them whether a driver is there or not."""

from dataclasses import dataclass
from pathlib import Path

from lightning_mp.fl.discovery.system import System

__all__ = ["PciCard", "find_pci_cards"]

# Display controllers, co-processors, processing accelerators; not the sound part of a card.
_CLASSES = ("0x03", "0x0b40", "0x12")


@dataclass(frozen=True)
class PciCard:
    """Describe one card.

    Args:
        address: Such as ``"0000:3b:00.0"``.
        driver: Kernel driver that is bound to it; empty if none is.
        nodes: Device nodes that the driver made for rendering, below ``dev/dri``.
    """

    address: str
    driver: str
    nodes: tuple[Path, ...] = ()


def find_pci_cards(system: System, maker_id: int) -> tuple[PciCard, ...]:
    """Find the cards of one maker.

    Args:
        system: What to look at.
        maker_id: PCI vendor id, such as 0x10DE.

    Returns:
        The cards in the order of their addresses.
    """
    folders = system.find("sys/bus/pci/devices/*")
    if not folders:
        # Some containers hide the bus but show the display devices.
        folders = [link.resolve() for link in system.find("sys/class/drm/card[0-9]/device")]
    cards = {}
    for folder in folders:
        if _number(_read(folder / "vendor")) == maker_id and _read(folder / "class").startswith(
            _CLASSES
        ):
            cards[folder.name] = _card(system, folder)
    return tuple(cards[address] for address in sorted(cards))


def _card(system: System, folder: Path) -> PciCard:
    driver = folder / "driver"
    nodes = tuple(
        system.root / "dev" / "dri" / node.name for node in sorted(folder.glob("drm/render*"))
    )
    return PciCard(folder.name, driver.resolve().name if driver.exists() else "", nodes)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return -1

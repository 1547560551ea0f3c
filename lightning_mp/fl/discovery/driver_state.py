"""First step of discovery: cards, drivers and device nodes, without torch."""

from dataclasses import dataclass
from pathlib import Path

from lightning_mp.fl.discovery.absence_reason import AbsenceReason
from lightning_mp.fl.discovery.pci_card import PciCard, find_pci_cards
from lightning_mp.fl.discovery.system import System
from lightning_mp.fl.discovery.vendor import Vendor

__all__ = ["DriverState", "probe_driver"]

Problem = tuple[AbsenceReason, str]


@dataclass(frozen=True)
class DriverState:
    """Hold what the operating system shows of one vendor.

    Args:
        vendor: The vendor.
        cards: Cards on the PCI bus.
        is_loaded: Whether a driver that torch can work on is loaded.
        nodes: Device nodes that are there.
        missing_nodes: Patterns that no node matches.
        denied_nodes: Nodes that this user may not open.
        is_on_platform: Whether the vendor exists on this operating system.
    """

    vendor: Vendor
    cards: tuple[PciCard, ...]
    is_loaded: bool
    nodes: tuple[str, ...]
    missing_nodes: tuple[str, ...]
    denied_nodes: tuple[str, ...]
    is_on_platform: bool

    @property
    def is_present(self) -> bool:
        """Whether anything of the vendor is there."""
        on_platform = bool(self.vendor.platform) and self.is_on_platform
        return bool(self.cards or self.is_loaded or self.nodes) or on_platform

    @property
    def problem(self) -> Problem | None:
        """The first thing that keeps a process from the cards, or None."""
        maker, drivers = self.vendor.maker, " or ".join(self.vendor.drivers)
        if not self.is_present:
            return AbsenceReason.NO_DEVICE, f"no {maker} device on this machine"
        if self.cards and not self.is_loaded:
            bound = sorted({card.driver for card in self.cards if card.driver})
            instead = f", {' and '.join(bound)} instead" if bound else ""
            return AbsenceReason.NO_DRIVER, (
                f"{self._count()}, kernel driver {drivers} is not loaded{instead}; install or load "
                "it"
            )
        if self.missing_nodes:
            names = " and ".join(f"/{name}" for name in self.missing_nodes)
            return AbsenceReason.NO_DEVICE_NODE, (
                f"the driver is loaded, {names} is missing; start the container with the devices, "
                "or let the driver make its nodes"
            )
        if self.denied_nodes:
            names = ", ".join(self.denied_nodes)
            return AbsenceReason.NO_PERMISSION, (
                f"this user may not open {names}; ask to be added to the group that owns it"
            )
        return None

    def __str__(self) -> str:
        if not self.is_present:
            return f"no {self.vendor.maker} device"
        loaded = "driver loaded" if self.is_loaded else "no driver"
        places = ", ".join(f"{card.address} ({card.driver or 'no driver'})" for card in self.cards)
        denied = f", {len(self.denied_nodes)} of them denied" if self.denied_nodes else ""
        nodes = f"{len(self.nodes)} device nodes{denied}"
        return "; ".join(filter(None, [self._count(), places, loaded, nodes]))

    def _count(self) -> str:
        many = "" if len(self.cards) == 1 else "s"
        return f"{len(self.cards)} {self.vendor.maker} card{many} on the PCI bus"


def probe_driver(vendor: Vendor, system: System) -> DriverState:
    """Look for a vendor's cards, driver and device nodes.

    Args:
        vendor: Whom to look for.
        system: Where to look.

    Returns:
        What is there.
    """
    cards = () if vendor.maker_id is None else find_pci_cards(system, vendor.maker_id)
    loaded = bool(system.find(*vendor.driver_files)) or any(
        card.driver in vendor.drivers for card in cards
    )
    patterns = {pattern: system.find(pattern) for pattern in vendor.nodes}
    nodes = [path for paths in patterns.values() for path in paths]
    missing = [pattern for pattern, paths in patterns.items() if not paths]
    if vendor.has_render_nodes:
        usable = [card for card in cards if card.driver in vendor.drivers]
        wanted = [node for card in usable for node in card.nodes]
        nodes = [node for node in wanted if node.exists()]
        missing = [] if nodes else ["dev/dri/render*"]
    return DriverState(
        vendor=vendor,
        cards=cards,
        is_loaded=loaded,
        nodes=tuple(_name(path, system) for path in nodes),
        # Nodes are the driver's; without it their absence says nothing more.
        missing_nodes=tuple(missing) if loaded else (),
        denied_nodes=tuple(_name(path, system) for path in nodes if not system.may_use(path)),
        is_on_platform=not vendor.platform or system.platform == vendor.platform,
    )


def _name(path: Path, system: System) -> str:
    return f"/{path.relative_to(system.root)}"

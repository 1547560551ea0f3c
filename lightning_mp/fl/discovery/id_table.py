"""The table of logical ids: a pure value, and how it is stored as text."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_mp.fl.discovery.found_device import FoundDevice
from lightning_mp.fl.discovery.id_entry import IdEntry

__all__ = ["MAX_DEVICES", "IdTable"]

# As many logical devices as one process can have, so ids end below it.
MAX_DEVICES = 16
_VERSION = 1


@dataclass(frozen=True)
class IdTable:
    """Hold which device has which id.

    A device keeps its id for as long as the table lives. One that is gone may come back, so its
    id stays taken and leaves a hole; a new device gets the number after the highest.

    Args:
        entries: In the order of their ids.
    """

    entries: tuple[IdEntry, ...] = ()

    def index_of(self, uid: str) -> int | None:
        """Look up an id; None if the device has none."""
        return next((entry.index for entry in self.entries if entry.uid == uid), None)

    @property
    def next_index(self) -> int:
        """The id that the next new device gets."""
        return max((entry.index for entry in self.entries), default=-1) + 1

    def extended(self, devices: Sequence[FoundDevice]) -> "IdTable":
        """Give ids to the devices that have none, in their order.

        Args:
            devices: Devices that were found.

        Returns:
            A table that has all of them, as far as there are ids left; this one if it had them
            before.
        """
        table = self
        for device in devices:
            spec = device.spec
            if table.index_of(spec.uid) is None and table.next_index < MAX_DEVICES:
                entry = IdEntry(table.next_index, spec.uid, spec.vendor, spec.name)
                table = IdTable((*table.entries, entry))
        return table

    def to_json(self) -> str:
        """Write the table as text."""
        content = {"version": _VERSION, "devices": [asdict(entry) for entry in self.entries]}
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "IdTable":
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: The text is something else.
        """
        try:
            content = json.loads(text)
        except RecursionError as error:
            raise ValueError("state = nested too deep; allowed: a table of ids") from error
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise ValueError(f"state has no version {_VERSION}; allowed: a table of ids")
        listed = content.get("devices")
        if not isinstance(listed, list) or not all(map(_is_entry, listed)):
            raise ValueError("state has broken entries; allowed: index, uid, vendor and name")
        entries = sorted((IdEntry(**item) for item in listed), key=lambda entry: entry.index)
        if any(len({getattr(e, key) for e in entries}) < len(entries) for key in ("index", "uid")):
            raise ValueError("state has an index or a uid twice; allowed: each once")
        return cls(tuple(entries))


def _is_entry(item: Any) -> bool:
    if not isinstance(item, dict) or item.keys() != {"index", "uid", "vendor", "name"}:
        return False
    index, *texts = (item[key] for key in ("index", "uid", "vendor", "name"))
    is_index = isinstance(index, int) and not isinstance(index, bool) and index >= 0
    return is_index and all(isinstance(text, str) for text in texts)

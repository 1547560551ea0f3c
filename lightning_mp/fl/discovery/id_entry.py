"""One line of the table of logical ids."""

from dataclasses import dataclass

__all__ = ["IdEntry"]


@dataclass(frozen=True)
class IdEntry:
    """Bind a logical id to a device for good.

    Args:
        index: Logical id, from 0 on.
        uid: Stable identity of the device.
        vendor: Its vendor.
        name: Its name when it was last seen.
    """

    index: int
    uid: str
    vendor: str
    name: str

"""One entry of ``devices``: which devices of a type are used, and how much of their memory."""

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_mp.fl.config.checks import check_choice, check_fraction, check_integer

__all__ = ["ACCELERATOR_TYPES", "DeviceConfig"]

ACCELERATOR_TYPES = ("cuda", "rocm", "xpu", "mps", "mtia", "hpu")


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Ask for accelerators of one type.

    Args:
        type: ``"cuda"``, ``"rocm"``, ``"xpu"``, ``"mps"``, ``"mtia"`` or ``"hpu"``.
        count: How many; None for all that are found.
        memory_fraction: Share of each device's memory that is the hard limit; above 0, up to 1.
        where: File and line it was read from; empty if it was made in code.

    Raises:
        SettingError: A value is not allowed.

    Example:
        >>> DeviceConfig(type="cuda", count=2, memory_fraction=0.9)
        DeviceConfig(type='cuda', count=2, memory_fraction=0.9)
    """

    TYPES: ClassVar[tuple[str, ...]] = ACCELERATOR_TYPES

    type: str
    count: int | None = None
    memory_fraction: float = 1.0
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("type", self.type, self.TYPES)
        if self.count is not None:
            check_integer("count", self.count, minimum=1)
        check_fraction("memory_fraction", self.memory_fraction)

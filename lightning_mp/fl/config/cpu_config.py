"""An entry of ``devices`` of type ``cpu``: the processor, whole or as partitions of its cores."""

from dataclasses import dataclass
from typing import ClassVar

from lightning_mp.fl.config.checks import check_integer, check_list
from lightning_mp.fl.config.device_config import DeviceConfig
from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["CpuConfig"]


@dataclass(frozen=True, kw_only=True)
class CpuConfig(DeviceConfig):
    """Ask for the CPU as one or more devices.

    Args:
        type: ``"cpu"``.
        count: Number of partitions, split evenly over the cores in their order. If there are
            fewer cores, partitions share them.
        memory_fraction: As in DeviceConfig; of this device's share of the memory.
        cores: Numbers of the cores to use; empty for all that the process may use.
        where: As in DeviceConfig.

    Raises:
        SettingError: A value is not allowed.

    Example:
        >>> CpuConfig(count=2).type
        'cpu'
    """

    TYPES: ClassVar[tuple[str, ...]] = ("cpu",)

    type: str = "cpu"
    count: int | None = 1
    cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("count", self.count, minimum=1)
        check_list("cores", self.cores)
        for place, core in enumerate(self.cores):
            check_integer(f"cores[{place}]", core, minimum=0)
        if self.cores and (self.count or 1) > len(self.cores):
            raise SettingError(
                f"count = {self.count} with {len(self.cores)} cores; allowed: up to one partition "
                "for each core that is named; name more cores or leave out cores",
                "count",
            )

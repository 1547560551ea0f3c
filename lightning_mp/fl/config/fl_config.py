"""The whole configuration of fl."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lightning_mp.fl.config.cpu_config import CpuConfig
from lightning_mp.fl.config.device_config import DeviceConfig
from lightning_mp.fl.config.fallback_config import FallbackConfig
from lightning_mp.fl.config.logging_config import LoggingConfig
from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["FlConfig"]


@dataclass(frozen=True, kw_only=True)
class FlConfig:
    """Hold what fl uses, how operators fall back, and what is logged.

    Args:
        devices: Devices to use; empty for every accelerator, or the CPU where there is none.
        fallback: What operators without a kernel do.
        logging: Level and file of the log.
        source: File it was read from; None if there was none.

    Raises:
        SettingError: Two entries of ``devices`` ask for the same.

    Example:
        >>> FlConfig(devices=(CpuConfig(count=2),)).devices[0].count
        2
    """

    devices: tuple[DeviceConfig, ...] = ()
    fallback: FallbackConfig = field(default_factory=FallbackConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    source: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for place, device in enumerate(self.devices):
            for other_place, other in enumerate(self.devices[:place]):
                _check_pair(f"devices[{place}]", device, f"devices[{other_place}]", other)

    def to_yaml(self) -> str:
        """Write every setting, defaults too, in the form that ``load_config`` reads.

        Returns:
            YAML text.

        Example:
            >>> FlConfig().to_yaml().splitlines()[:3]
            ['devices: []', 'fallback:', '  enable_cpu_fallback: true']
        """
        content = {
            "devices": [_plain(device) for device in self.devices],
            "fallback": _plain(self.fallback),
            "logging": _plain(self.logging),
        }
        return yaml.safe_dump(content, sort_keys=False)


def _check_pair(place: str, device: DeviceConfig, other_place: str, other: DeviceConfig) -> None:
    if device.type != other.type or device.type == "sim":
        return
    if isinstance(device, CpuConfig) and isinstance(other, CpuConfig):
        if not device.cores or not other.cores:
            raise SettingError(
                f"{place}.type = 'cpu' with {other_place}.type = 'cpu'; allowed: one entry of the "
                "CPU, or cores for each; use count, or name the cores",
                f"{place}.type",
            )
        if set(device.cores) == set(other.cores):
            raise SettingError(
                f"{place}.cores = {list(device.cores)}, which are those of {other_place}; allowed: "
                "different cores in each entry; change or remove one",
                f"{place}.cores",
            )
        return
    raise SettingError(
        f"{place}.type = {device.type!r}, which is that of {other_place}; allowed: one entry for "
        "each type of accelerator; use count for several devices",
        f"{place}.type",
    )


def _plain(record: Any) -> dict[str, Any]:
    """Turn a record into what YAML has: no tuples, and not the place it was read from."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(record).items()
        if name != "where"
    }

"""What discovery found."""

from dataclasses import dataclass
from pathlib import Path

from lightning_mp.fl.config import FlConfig
from lightning_mp.fl.device_spec import DeviceSpec
from lightning_mp.fl.discovery.absent_device import AbsentDevice
from lightning_mp.fl.discovery.device_record import DeviceRecord

__all__ = ["DiscoveryReport"]


@dataclass(frozen=True)
class DiscoveryReport:
    """Hold the devices, what is not used and why, and the steps that led there.

    Args:
        records: Devices with an id, in the order of their ids.
        absent: What was looked for and is not used.
        log: One line for each step.
        config: The configuration that was in force.
        state_file: Where the ids are kept; None without a home.
    """

    records: tuple[DeviceRecord, ...]
    absent: tuple[AbsentDevice, ...]
    log: tuple[str, ...]
    config: FlConfig
    state_file: Path | None

    @property
    def specs(self) -> tuple[DeviceSpec, ...]:
        """The devices that can be used, in the order of their ids, which may have holes."""
        return tuple(record.spec for record in self.records if record.is_available)

    def require_configured(self) -> None:
        """Refuse to go on without a device that the configuration names.

        Raises:
            RuntimeError: A device that is named is missing, or there is none at all.
        """
        missing = [str(absent) for absent in self.absent if absent.is_configured]
        if missing:
            raise RuntimeError(
                f"fl device = {'; '.join(missing)}; needed: every device that the config names; "
                "mend the cause, remove the entry, or name another file with TORCH_FL_CONFIG"
            )

"""A device that was looked for and is not used."""

from dataclasses import dataclass

from lightning_mp.fl.discovery.absence_reason import AbsenceReason

__all__ = ["AbsentDevice"]


@dataclass(frozen=True)
class AbsentDevice:
    """Say what is not used and why.

    Args:
        vendor: ``"cuda"``, ``"rocm"``, ``"cpu"`` and so on.
        reason: What keeps it out.
        detail: What was seen, with the remedy.
        where: File and line of the configuration that asks for it; empty if none does.
        is_configured: Whether the configuration asks for it.
    """

    vendor: str
    reason: AbsenceReason
    detail: str
    where: str = ""
    is_configured: bool = False

    def __str__(self) -> str:
        asked = ""
        if self.is_configured:
            asked = f"named in the config ({self.where}), but " if self.where else "asked for, but "
        return f"{self.vendor}: {asked}{self.reason.value}: {self.detail}"

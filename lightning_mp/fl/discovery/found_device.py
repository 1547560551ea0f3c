"""A device that answered, before it has a logical id."""

from dataclasses import dataclass

from lightning_mp.fl.device_spec import DeviceSpec

__all__ = ["UNNUMBERED", "FoundDevice"]

UNNUMBERED = -1


@dataclass(frozen=True)
class FoundDevice:
    """Hold what the capability query of one device gave.

    Args:
        spec: Everything but the index, which is ``UNNUMBERED``.
        compute: Cores, multiprocessors or architecture, in words.
        num_operators: Operators of torch that run on its type, natively or by composition.
    """

    spec: DeviceSpec
    compute: str = ""
    num_operators: int = 0

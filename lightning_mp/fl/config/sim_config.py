"""An entry of ``devices`` of type ``sim``: devices that are simulated in host memory."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lightning_mp.fl.config.checks import (
    check_choice,
    check_integer,
    check_list,
    check_number,
    check_operators,
)
from lightning_mp.fl.config.device_config import DeviceConfig
from lightning_mp.fl.config.setting_error import SettingError

__all__ = ["DTYPE_NAMES", "SimConfig"]

DTYPE_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
)  # fmt: skip
_DEFAULT_DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
)  # fmt: skip
_LARGEST_ALIGNMENT_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class SimConfig(DeviceConfig):
    """Ask for simulated devices.

    Args:
        type: ``"sim"``.
        count: Number of devices like this.
        memory_fraction: As in DeviceConfig; of ``memory_bytes``.
        memory_bytes: Capacity of each.
        dtypes: Names of the dtypes that it takes; by default no float64 and no complex ones.
        unsupported_operators: Operators that it has no kernel for, such as ``"aten::tril"``.
        slowdown: Declared factor by which its operators take longer than the CPU's; 1 to 1000.
        alignment_bytes: Alignment of its memory, a power of two from 64 to 4096.
        where: As in DeviceConfig.

    Raises:
        SettingError: A value is not allowed.

    Example:
        >>> SimConfig(dtypes=("float32",)).torch_dtypes
        frozenset({torch.float32})
    """

    TYPES: ClassVar[tuple[str, ...]] = ("sim",)

    type: str = "sim"
    count: int | None = 1
    memory_bytes: int = 2**30
    dtypes: tuple[str, ...] = _DEFAULT_DTYPES
    unsupported_operators: tuple[str, ...] = ()
    slowdown: float = 1.0
    alignment_bytes: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("count", self.count, minimum=1)
        check_integer("memory_bytes", self.memory_bytes, minimum=_LARGEST_ALIGNMENT_BYTES)
        check_list("dtypes", self.dtypes)
        for place, name in enumerate(self.dtypes):
            check_choice(f"dtypes[{place}]", name, DTYPE_NAMES)
        if not self.dtypes:
            raise SettingError(
                "dtypes = []; allowed: at least one dtype; name float32 or leave dtypes out",
                "dtypes",
            )
        check_operators("unsupported_operators", self.unsupported_operators)
        check_number("slowdown", self.slowdown, minimum=1, maximum=1000)
        _check_alignment(self.alignment_bytes)

    @property
    def torch_dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes as torch's objects."""
        return frozenset(getattr(torch, name) for name in self.dtypes)


def _check_alignment(value: int) -> None:
    powers = [2**power for power in range(6, 13)]
    if isinstance(value, bool) or not isinstance(value, int) or value not in powers:
        raise SettingError(
            f"alignment_bytes = {value!r}; allowed: {', '.join(map(str, powers))}; 256 is that of "
            "most accelerators",
            "alignment_bytes",
        )

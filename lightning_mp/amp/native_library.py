"""The only door to ``lightning_mp._O1``: loads it once torch is there, and says why it did not.

The library holds the casts of O1 as kernels. Loading it registers nothing.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch

from lightning_mp.amp.dispatcher_ops import STOCK_DIFFERENCES, dispatcher_ops

__all__ = ["NativeSlots", "load_native_library", "native_report"]

_NAME = "lightning_mp._O1"
_REMEDY = "install lightning_mp with --no-build-isolation where torch and a C++ compiler are"


class NativeSlots(NamedTuple):
    """Who casts what on one device type.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or ``"privateuse1"``.
        num_ours: Number of operators that kernels of O1 cast, or will once O1 is used.
        num_taken: Number of operators that torch's or the device's own autocast casts.
        differing: Those of the latter that are not cast as the table of O1 says.
    """

    device_type: str
    num_ours: int
    num_taken: int
    differing: tuple[str, ...]


@cache
def load_native_library() -> tuple[ModuleType | None, str]:
    """Load the library, once per process.

    Returns:
        The library, or None; and what it was built for, or why it is not there.
    """
    try:
        library = importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        return None, f"{_NAME} is not built; {_REMEDY}"
    except ImportError as error:
        # A missing symbol is how a library shows that it was linked to another torch.
        return None, (
            f"{_NAME} does not load with torch {torch.__version__} "
            f"({str(error).splitlines()[0]}); {_REMEDY}"
        )
    built_for = library.TORCH_VERSION
    if _minor(built_for) != _minor(torch.__version__):
        return None, f"{_NAME} was built for torch {built_for}, not {torch.__version__}; {_REMEDY}"
    return library, f"{_NAME} built for torch {built_for}"


def native_report() -> list[NativeSlots]:
    """Count whose kernels cast what, without registering anything.

    Returns:
        One entry per device type; none if the library is not there.
    """
    library, _ = load_native_library()
    if library is None:
        return []
    report = []
    for device_type, differences in STOCK_DIFFERENCES.items():
        owners = {
            (op.name, op.overload): library.slot(op.name, op.overload, device_type)
            for op in dispatcher_ops()
        }
        taken = [
            name.removeprefix("aten::") for (name, _), owner in owners.items() if owner == "taken"
        ]
        report.append(
            NativeSlots(
                device_type,
                num_ours=sum(owner in ("free", "ours") for owner in owners.values()),
                num_taken=len(taken),
                differing=tuple(name for name in differences if name in taken),
            )
        )
    return report


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]

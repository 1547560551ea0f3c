"""The only door to ``lightning_mp._O1``: loads it once torch is there, and says why it did not.

The library holds the casts of O1 as kernels. Loading it registers nothing.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import NamedTuple

from lightning_mp.amp.dispatcher_ops import STOCK_DIFFERENCES, dispatcher_ops
from lightning_mp.native_build import explain_load_failure, explain_missing, explain_wrong_torch

__all__ = ["NativeSlots", "load_native_library", "native_report"]

_NAME = "lightning_mp._O1"


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
        return None, explain_missing(_NAME)
    except ImportError as error:
        return None, explain_load_failure(_NAME, error)
    problem = explain_wrong_torch(_NAME, library.TORCH_VERSION)
    if problem is not None:
        return None, problem
    return library, f"{_NAME} built for torch {library.TORCH_VERSION}"


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

"""All checks of the kernels on a device, one after the other in one process."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from benchkit.gpu_check import Check, NotHereError
from benchkit.gpu_device_checks import DEVICE_CHECKS
from benchkit.gpu_op_checks import OP_CHECKS
from benchkit.gpu_rounding_checks import ROUNDING_CHECKS
from benchkit.gpu_training_checks import TRAINING_CHECKS

__all__ = ["CHECKS", "measure_gpu_checks"]

CHECKS: Mapping[str, Check] = {
    **OP_CHECKS,
    **ROUNDING_CHECKS,
    **DEVICE_CHECKS,
    **TRAINING_CHECKS,
}

_MAX_DETAIL_LENGTH = 300


def measure_gpu_checks(
    *, names: Sequence[str], device: str, is_smoke: bool = False
) -> list[dict[str, Any]]:
    """Run checks until one leaves the device in a state that no other could work in.

    Args:
        names: Names of the checks.
        device: ``"cuda"`` or ``"cpu"``.
        is_smoke: Whether to be quick.

    Returns:
        For each check that ran its ``name``, ``outcome`` (``"passed"``, ``"failed"`` or ``"not
        here"``), ``detail`` and ``seconds``.
    """
    results = []
    for name in names:
        results.append(_run(name, torch.device(device), is_smoke))
        print(f"{name}: {results[-1]['outcome']}: {results[-1]['detail']}", file=sys.stderr)
        if device == "cuda" and not _is_usable():
            break
    return results


def _run(name: str, device: torch.device, is_smoke: bool) -> dict[str, Any]:
    start = time.monotonic()
    try:
        outcome, detail = "passed", CHECKS[name](device, is_smoke)
    except NotHereError as error:
        outcome, detail = "not here", str(error)
    # Whatever a kernel or torch raises is a finding; the other checks are to run all the same.
    except Exception as error:
        outcome, detail = "failed", f"{type(error).__name__}: {error}"
    return {
        "name": name,
        "outcome": outcome,
        "detail": " ".join(detail.split())[:_MAX_DETAIL_LENGTH],
        "seconds": time.monotonic() - start,
    }


def _is_usable() -> bool:
    """Tell whether the context survived: after an illegal access every call fails."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return True
    return False

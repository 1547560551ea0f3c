"""The ways to cast functions that are compared: nothing, torch.autocast, and O1 twice."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lightning_mp.amp.function_casts import FunctionCasts

__all__ = ["CASTS", "PEER", "make_contexts"]

PEER = "autocast"
CASTS = ("none", PEER, "O1 C++", "O1 Python")


def make_contexts(half_dtype: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Make the contexts to compare.

    Args:
        half_dtype: ``"bfloat16"`` or ``"float16"``.

    Returns:
        A function for each of ``CASTS`` that makes its context.

    Raises:
        RuntimeError: If the C++ form of O1 is not there.
    """
    dtype = getattr(torch, half_dtype)
    native = FunctionCasts(dtype, implementation="native")
    python = FunctionCasts(dtype, implementation="python")
    return {
        "none": nullcontext,
        PEER: lambda: torch.autocast("cpu", dtype=dtype),
        "O1 C++": native.context,
        "O1 Python": python.context,
    }

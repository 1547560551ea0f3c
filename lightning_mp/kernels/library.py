"""The only door to ``lightning_mp._C``, the compiled kernels; without them the references run."""

import importlib.util
import os
from functools import cache
from typing import NamedTuple

import torch

from lightning_mp.kernels.definitions import LIBRARY
from lightning_mp.kernels.reference import REFERENCES

__all__ = ["NativeLibrary", "load_kernels"]

_NAME = "lightning_mp._C"
_REMEDY = "install lightning_mp with --no-build-isolation where torch and a C++ compiler are"
NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"


class NativeLibrary(NamedTuple):
    """What became of the compiled kernels.

    Args:
        is_loaded: Whether they are registered.
        reason: What was loaded, or why nothing was.
    """

    is_loaded: bool
    reason: str


@cache
def load_kernels() -> NativeLibrary:
    """Register an implementation of every operation, once per process.

    The references run on every device type that has no compiled kernel.

    Returns:
        What became of the compiled kernels.
    """
    for name, function in REFERENCES.items():
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    if os.environ.get(NO_NATIVE_VARIABLE, "0") not in {"", "0"}:
        return NativeLibrary(False, f"{NO_NATIVE_VARIABLE} = {os.environ[NO_NATIVE_VARIABLE]!r}")
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        return NativeLibrary(False, f"{_NAME} is not built; {_REMEDY}")
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        # A missing symbol is how a library shows that this torch is older than it needs.
        return NativeLibrary(
            False,
            f"{_NAME} does not load with torch {torch.__version__} "
            f"({str(error).splitlines()[0]}); {_REMEDY}",
        )
    return NativeLibrary(True, f"{_NAME}")

"""The only door to ``lightning_mp._C``, the compiled kernels; without them the references run."""

import ctypes
import importlib.util
import os
from functools import cache
from typing import Any, NamedTuple

import torch

from lightning_mp.kernels.definitions import LIBRARY
from lightning_mp.kernels.reference import REFERENCES

__all__ = ["NativeLibrary", "load_kernels"]

_NAME = "lightning_mp._C"
_REMEDY = "install lightning_mp with --no-build-isolation where torch and a C++ compiler are"
_NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"


class NativeLibrary(NamedTuple):
    """What became of the compiled kernels.

    Args:
        is_loaded: Whether they are registered.
        reason: What was loaded, or why nothing was.
        isa: Instruction set of the kernels on the CPU: ``base``, ``avx2`` or ``avx512``.
        source_digest: Hash of the sources that they were built from.
    """

    is_loaded: bool
    reason: str
    isa: str = ""
    source_digest: str = ""


@cache
def load_kernels() -> NativeLibrary:
    """Register an implementation of every operation, once per process.

    The references run on every type of device that has no compiled kernel, and everywhere with
    ``LIGHTNING_MP_NO_NATIVE=1``.

    Returns:
        What became of the compiled kernels.

    Raises:
        RuntimeError: If ``LIGHTNING_MP_ISA`` names no instruction set.
    """
    for name, function in REFERENCES.items():
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    switch = os.environ.get(_NO_NATIVE_VARIABLE, "0")
    if switch not in {"", "0"}:
        return NativeLibrary(False, f"{_NO_NATIVE_VARIABLE} = {switch!r}")
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        return NativeLibrary(False, f"{_NAME} is not built; {_REMEDY}")
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        # A missing symbol is how a library shows that this torch is older than it needs.
        said = str(error).splitlines()[0]
        return NativeLibrary(
            False, f"{_NAME} does not load with torch {torch.__version__} ({said}); {_REMEDY}"
        )
    library = ctypes.CDLL(spec.origin)
    isa = _text(library.lightning_mp_isa)
    if isa.startswith("LIGHTNING_MP_ISA"):
        raise RuntimeError(isa)
    return NativeLibrary(
        is_loaded=True,
        reason=f"{_NAME} for torch >= 2.10",
        isa=isa,
        source_digest=_text(library.lightning_mp_source_digest),
    )


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return function().decode()

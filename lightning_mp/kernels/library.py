"""The only door to ``lightning_mp._C``, the compiled kernels; without them the references run."""

import ctypes
import importlib.util
import os
from functools import cache
from typing import Any, NamedTuple

import torch

from lightning_mp.kernels.definitions import LIBRARY
from lightning_mp.kernels.reference import REFERENCES
from lightning_mp.native_build import explain_load_failure, explain_missing

__all__ = ["NativeLibrary", "load_kernels"]

_NAME = "lightning_mp._C"
_NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"


class NativeLibrary(NamedTuple):
    """What became of the compiled kernels.

    Args:
        is_loaded: Whether they are registered.
        reason: What was loaded, or why nothing was.
        isa: Instruction set of the kernels on the CPU: ``base``, ``avx2`` or ``avx512``.
        source_digest: Hash of the sources that they were built from.
        gpu_architectures: GPUs that there are kernels for, such as ``sm_80, sm_90``; empty for
            none.
    """

    is_loaded: bool
    reason: str
    isa: str = ""
    source_digest: str = ""
    gpu_architectures: str = ""


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
        return NativeLibrary(False, explain_missing(_NAME))
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        return NativeLibrary(False, explain_load_failure(_NAME, error))
    library = ctypes.CDLL(spec.origin)
    isa = _text(library.lightning_mp_isa)
    if isa.startswith("LIGHTNING_MP_ISA"):
        raise RuntimeError(isa)
    return NativeLibrary(
        is_loaded=True,
        reason=f"{_NAME} for torch >= 2.10",
        isa=isa,
        source_digest=_text(library.lightning_mp_source_digest),
        gpu_architectures=_text(library.lightning_mp_gpu_architectures),
    )


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return function().decode()

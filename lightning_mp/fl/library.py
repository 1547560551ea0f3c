"""The only door to ``lightning_mp._fl``, the device in C++; loading it changes nothing in torch."""

import ctypes
import importlib.util
import os
from functools import cache
from typing import Any, NamedTuple

import torch

from lightning_mp.native_build import explain_load_failure, explain_missing, explain_wrong_torch

__all__ = ["FlLibrary", "fl_operators", "load_fl_library"]

_NAME = "lightning_mp._fl"
_NO_NATIVE_VARIABLE = "LIGHTNING_MP_NO_NATIVE"


class FlLibrary(NamedTuple):
    """What became of the library.

    Args:
        is_loaded: Whether its operators are defined.
        reason: What was loaded, or why nothing was.
        source_digest: Hash of the sources that it was built from.
    """

    is_loaded: bool
    reason: str
    source_digest: str = ""


@cache
def load_fl_library() -> FlLibrary:
    """Load the library, once per process.

    Returns:
        What became of it.
    """
    switch = os.environ.get(_NO_NATIVE_VARIABLE, "0")
    if switch not in {"", "0"}:
        return FlLibrary(False, f"{_NO_NATIVE_VARIABLE} = {switch!r}; leave it out")
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        return FlLibrary(False, explain_missing(_NAME))
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError as error:
        return FlLibrary(False, explain_load_failure(_NAME, error))
    built_for = _text(library.lightning_mp_fl_torch_version)
    problem = explain_wrong_torch(_NAME, built_for) or _text(library.lightning_mp_fl_define)
    if problem:
        return FlLibrary(False, problem)
    digest = _text(library.lightning_mp_fl_source_digest)
    return FlLibrary(True, f"{_NAME} built for torch {built_for}", digest)


def fl_operators() -> Any:
    """Return the operators of the library, such as ``fl_operators().activate()``.

    Returns:
        Namespace of operators.

    Raises:
        RuntimeError: If the library is not there.
    """
    library = load_fl_library()
    if not library.is_loaded:
        raise RuntimeError(f"device type fl = not available; {library.reason}")
    return torch.ops.lightning_mp_fl


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return function().decode()

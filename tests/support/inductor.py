"""torch.compile's default backend as a parameter of tests, where it can compile at all."""

import shutil

import pytest
from torch.utils.cpp_extension import get_cxx_compiler, include_paths


def _why_not() -> str:
    if shutil.which(get_cxx_compiler().split()[0]) is None:
        return "torch's inductor needs a C++ compiler"
    spaced = [path for path in include_paths() if " " in path]
    # Its command line is split at spaces before it reaches the compiler.
    return f"torch's inductor cannot use a path with a space: {spaced[0]!r}" if spaced else ""


_REASON = _why_not()

INDUCTOR = pytest.param(
    "inductor", marks=[pytest.mark.slow, pytest.mark.skipif(bool(_REASON), reason=_REASON)]
)

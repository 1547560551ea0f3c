"""What tests of native casts share."""

import os
import shutil
from collections.abc import Iterator

import pytest
import torch
from torch.utils.cpp_extension import get_cxx_compiler

from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.native_library import load_native_library

# tests/packaging/test_native_build.py fails where the library could have been built and is not.
requires_native = pytest.mark.skipif(
    load_native_library()[0] is None, reason=load_native_library()[1]
)


def has_compiler() -> bool:
    """Tell whether setup.py builds the library here."""
    is_wanted = os.environ.get("LIGHTNING_MP_NO_NATIVE", "0") in {"", "0"}
    return is_wanted and shutil.which(get_cxx_compiler().split()[0]) is not None


def builds_fl() -> bool:
    """Tell whether setup.py builds the device fl here: only for torch that it is written for."""
    return has_compiler() and torch.__version__.split(".")[:2] == ["2", "13"]


@pytest.fixture(autouse=True, scope="module")
def native_casts_removed() -> Iterator[None]:
    """Leave the process as it was once the module that imports this is through."""
    yield
    if INSTALLATION.carriers:
        INSTALLATION.uninstall()

"""What tests of the compiled kernels share."""

import pytest

from lightning_mp.kernels.library import load_kernels

# tests/packaging/test_native_build.py fails where the library could have been built and is not.
requires_kernels = pytest.mark.skipif(not load_kernels().is_loaded, reason=load_kernels().reason)

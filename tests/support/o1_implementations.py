"""The implementations of O1 that this installation has."""

import pytest

from lightning_mp.amp.native_casts import native_status

HAS_NATIVE = native_status(("cpu",))[0]
IMPLEMENTATIONS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(not HAS_NATIVE, reason="_O1 is not built")),
]

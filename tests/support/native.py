"""What tests of native casts share."""

from collections.abc import Iterator

import pytest

from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.native_library import load_native_library

# tests/packaging/test_native_build.py fails where the library could have been built and is not.
requires_native = pytest.mark.skipif(
    load_native_library()[0] is None, reason=load_native_library()[1]
)


@pytest.fixture(autouse=True, scope="module")
def native_casts_removed() -> Iterator[None]:
    """Leave the process as it was once the module that imports this is through."""
    yield
    if INSTALLATION.carriers:
        INSTALLATION.uninstall()

"""Each test starts with an Apex API that nothing has been set up with."""

from collections.abc import Iterator

import pytest

from lightning_mp.amp import _amp_state
from lightning_mp.amp.apex_handle import AmpHandle


@pytest.fixture(autouse=True)
def fresh_amp_state() -> Iterator[None]:
    yield
    if isinstance(_amp_state.handle, AmpHandle):
        _amp_state.handle._deactivate()
    vars(_amp_state).clear()
    _amp_state.__init__()

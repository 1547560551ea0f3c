"""The devices that all tests of fl share: their process can have no others afterwards."""

from pathlib import Path

import pytest
import torch

from lightning_mp import fl
from lightning_mp.fl import DeviceSpec
from lightning_mp.fl.library import load_fl_library

MIB = 1 << 20
# fl:2 is a hole. The simulated device lacks float64, and two operators.
SPECS = (
    DeviceSpec(index=0, vendor="cpu", native_type="cpu", native_index=0, name="host", uid="cpu:0"),
    DeviceSpec(
        index=1, vendor="cpu", native_type="cpu", native_index=0, name="small host", uid="cpu:1",
        memory_bytes=128 * MIB, memory_fraction=0.5,
    ),
    DeviceSpec(
        index=3, vendor="sim", native_type="cpu", native_index=0, name="simulated", uid="sim:0",
        is_simulated=True, memory_bytes=64 * MIB, alignment_bytes=256,
        dtypes=frozenset(
            {torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
             torch.bool}
        ),
        unsupported_operators=frozenset({"aten::tril", "aten::roll"}),
    ),
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse other tests beside those of fl, which would run on a changed torch."""
    others = [item for item in items if not item.path.is_relative_to(Path(__file__).parent)]
    if others:
        raise pytest.UsageError(
            f"tests/fl/active beside {others[0].nodeid}; tests of fl change their process, so they "
            "run alone; call pytest once for each"
        )


@pytest.fixture(scope="session", autouse=True)
def active_fl():
    """Activate fl with the devices of the tests."""
    library = load_fl_library()
    if not library.is_loaded:
        pytest.skip(library.reason)
    fl.activate(SPECS)


@pytest.fixture(autouse=True)
def settings_restored():
    """Leave the current device and the seed as every test expects them."""
    torch.fl.set_device(0)
    torch.manual_seed(0)
    yield
    torch.fl.set_device(0)

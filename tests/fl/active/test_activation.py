"""Turning the device type on: idempotent, with the devices given, and refused as a whole."""

import dataclasses

import pytest
import torch

import lightning_mp
from lightning_mp import fl
from lightning_mp.fl import library
from lightning_mp.fl.library import fl_operators, load_fl_library
from lightning_mp.fl.spec_checks import check_specs
from lightning_mp.fl.torch_module.device_index import device_index

CPU = fl.DeviceSpec(
    index=0, vendor="cpu", native_type="cpu", native_index=0, name="host", uid="cpu:0"
)
load = load_fl_library.__wrapped__


def test_devices_are_those_that_were_given():
    assert fl.is_active()
    assert [spec.index for spec in fl.active_specs()] == [0, 1, 3]
    assert torch.fl.device_ids() == (0, 1, 3)
    assert torch.fl.device_count() == 4
    assert torch.fl.is_available()
    assert torch.fl.is_initialized()
    assert lightning_mp.fl.device(3) == torch.device("fl:3")
    assert lightning_mp.fl.device() == torch.device("fl:0")


def test_a_second_activation_changes_nothing():
    before = torch.ops.lightning_mp_fl
    fl.activate()
    fl.activate(fl.active_specs())
    assert torch.ops.lightning_mp_fl is before
    assert torch.fl.device_ids() == (0, 1, 3)


def test_other_devices_are_refused():
    with pytest.raises(RuntimeError, match=r"devices of fl = \['cpu:0'\]; this process has"):
        fl.activate([CPU])
    assert torch.fl.device_ids() == (0, 1, 3)


@pytest.mark.parametrize("index", [2, 4, 99, -1])
def test_a_device_that_is_not_there_is_refused(index: int):
    with pytest.raises(IndexError, match=rf"device index = {index}; there are fl:0, fl:1, fl:3"):
        fl.device(index)


@pytest.mark.parametrize("index", [2, 4, 99])
def test_a_tensor_on_a_device_that_is_not_there_is_refused(index: int):
    with pytest.raises(IndexError, match=rf"device index = {index}; there are fl:0, fl:1, fl:3"):
        torch.ones(2, device=f"fl:{index}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("index", 16, "index of fl:16 = 16; 0 to 15 is allowed"),
        ("index", -1, "index of fl:-1 = -1; 0 to 15 is allowed"),
        ("native_index", -1, "native_index of fl:0 = -1; 0 or more is allowed"),
        ("memory_bytes", -1, "memory_bytes of fl:0 = -1; 0 or more is allowed"),
        ("memory_fraction", 0.0, "memory_fraction of fl:0 = 0.0; above 0, to 1 is allowed"),
        ("memory_fraction", 1.5, "memory_fraction of fl:0 = 1.5; above 0, to 1 is allowed"),
        ("alignment_bytes", 100, "alignment_bytes of fl:0 = 100; a power of two from 64 to 4096"),
        ("slowdown", 0.5, "slowdown of fl:0 = 0.5; 1 or more is allowed"),
        ("dtypes", frozenset(), "dtypes of fl:0 = .*; None or some dtypes is allowed"),
        ("native_type", "gpu", "native_type of fl:0 = 'gpu'; device types of torch are allowed"),
        ("native_type", "fl", "native_type of fl:0 = 'fl'; this device uses the place in torch"),
    ],
)
def test_a_wrong_field_is_refused(field: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        check_specs([dataclasses.replace(CPU, **{field: value})])


def test_devices_that_torch_does_not_find_are_refused():
    spec = dataclasses.replace(CPU, native_type="cuda", native_index=99)
    with pytest.raises(RuntimeError, match=r"device under fl:0 = cuda:99; torch finds \d+ of this"):
        check_specs([spec])


def test_ids_are_unique_and_there_is_one():
    with pytest.raises(ValueError, match=r"ids of devices = \[0, 0\]; each id once is allowed"):
        check_specs([CPU, CPU])
    with pytest.raises(ValueError, match=r"specs = \[\]; one device or more is allowed"):
        check_specs([])


@pytest.mark.parametrize(("name", "expected"), [(None, 0), (1, 1), ("fl", 0), ("fl:3", 3)])
def test_ways_to_name_a_device(name: object, expected: int):
    assert device_index(name) == expected


def test_a_device_of_another_type_is_refused():
    with pytest.raises(ValueError, match="device = cpu; devices of type fl are allowed"):
        device_index("cpu")


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    assert load().reason.startswith("lightning_mp._fl is not built; install lightning_mp with")


def test_a_library_that_does_not_load_is_explained(monkeypatch: pytest.MonkeyPatch):
    def fail(path: str):
        raise OSError("_fl.so: undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(library.ctypes, "CDLL", fail)
    reason = load().reason
    assert "does not load with torch" in reason
    assert "(_fl.so: undefined symbol: _ZN3c10)" in reason


def test_a_library_of_another_torch_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "_text", lambda function: "2.9.1")
    assert load().reason.startswith(
        f"lightning_mp._fl was built for torch 2.9.1, not {torch.__version__}"
    )


def test_opting_out_of_native_libraries_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LIGHTNING_MP_NO_NATIVE", "1")
    assert load() == (False, "LIGHTNING_MP_NO_NATIVE = '1'; leave it out", "")


def test_without_the_library_asking_for_fl_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        library, "load_fl_library", lambda: library.FlLibrary(False, "why; do this")
    )
    with pytest.raises(RuntimeError, match="device type fl = not available; why; do this"):
        fl_operators()

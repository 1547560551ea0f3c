"""Loading the library, refusing a wrong one, and the report on its slots."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from support.native import native_casts_removed, requires_native  # noqa: F401

from lightning_mp.amp import native_library
from lightning_mp.amp.dispatcher_ops import dispatcher_ops
from lightning_mp.amp.native_casts import NativeCasts, native_status
from lightning_mp.amp.native_library import load_native_library, native_report

NAME = "lightning_mp._O1"
load = load_native_library.__wrapped__


def test_a_missing_library_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)
    library, reason = load()
    assert library is None
    assert "lightning_mp._O1 is not built; install" in reason


def test_a_missing_module_of_another_name_is_an_error(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="other"):
        load()


def test_a_library_that_does_not_link_is_explained(monkeypatch):
    def fail(name):
        raise ImportError("_O1.so: undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(importlib, "import_module", fail)
    library, reason = load()
    assert library is None
    assert f"does not load with torch {torch.__version__} (_O1.so: undefined symbol" in reason
    assert "more" not in reason


def test_a_library_of_another_torch_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, SimpleNamespace(TORCH_VERSION="2.9.1"))
    library, reason = load()
    assert library is None
    assert f"was built for torch 2.9.1, not {torch.__version__}; install" in reason


def test_a_patch_release_and_a_local_version_do_not_matter(monkeypatch):
    module = SimpleNamespace(TORCH_VERSION=".".join([*torch.__version__.split(".")[:2], "99"]))
    monkeypatch.setitem(sys.modules, NAME, module)
    assert load()[0] is module


def test_without_the_library_native_casts_are_refused_and_the_report_is_empty(monkeypatch):
    monkeypatch.setattr("lightning_mp.amp.native_casts.load_native_library", lambda: (None, "why"))
    monkeypatch.setattr(native_library, "load_native_library", lambda: (None, "why"))
    assert native_status(("cpu",)) == (False, "why")
    assert native_report() == []
    with pytest.raises(RuntimeError, match=r"native casts on \('cpu',\) = not available; why"):
        NativeCasts(torch.bfloat16, ("cpu",))


@requires_native
def test_report_counts_every_operator_and_registers_nothing():
    library, _ = load_native_library()
    assert library is not None
    before = library.table()
    report = {slots.device_type: slots for slots in native_report()}
    assert library.table() == before
    assert list(report) == ["cpu", "cuda", "privateuse1"]
    assert all(s.num_ours + s.num_taken == len(dispatcher_ops()) for s in report.values())
    assert report["cpu"].differing == ("binary_cross_entropy", "pinverse")
    assert "grid_sampler" in report["cuda"].differing


@requires_native
def test_report_is_the_same_once_the_kernels_are_in():
    before = native_report()
    NativeCasts(torch.bfloat16, ("cpu",))
    assert native_report() == before


@requires_native
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("slot", "aten::exp", "", "tpu"), r"device = tpu; allowed: cpu, cuda, privateuse1"),
        (("add", "aten::exp", "", "int8", "cpu"), r"policy = int8; allowed: half, fp32, promote"),
        (("remove", "tpu"), r"device = tpu; allowed"),
        (("use_carrier", "cpu", "cpu"), r"carrier = cpu; allowed: a device type other than cpu"),
    ],
)
def test_the_library_refuses_what_it_does_not_know(call, message):
    library, _ = load_native_library()
    assert library is not None
    before = library.table()
    with pytest.raises(ValueError, match=message):
        getattr(library, call[0])(*call[1:])
    assert library.table() == before


@requires_native
def test_absent_operators_and_changes_of_policy():
    library, _ = load_native_library()
    assert library is not None
    assert library.add("aten::no_such_operator", "", "fp32", "cuda") == "absent"
    assert library.add("aten::linear", "", "fp32", "cuda") == "taken"
    assert library.slot("aten::i0", "", "cuda") == "free"
    for policy in ("fp32", "fp32", "keep"):
        assert library.add("aten::i0", "", policy, "cuda") == "ours"
        assert ("cuda", "aten::i0", "", policy) in library.table()
    library.remove("cuda")
    assert library.slot("aten::i0", "", "cuda") == "free"

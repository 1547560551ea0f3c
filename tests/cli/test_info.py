import json
from types import SimpleNamespace

import pytest
import torch

import lightning_mp
from lightning_mp.amp.native_library import native_report
from lightning_mp.cli import main
from lightning_mp.cli.info import collect_info, format_info
from lightning_mp.connector import is_installed


@pytest.fixture(autouse=True)
def seams(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_FL_CONFIG", raising=False)
    monkeypatch.delenv("LIGHTNING_MP_NO_PATCH", raising=False)
    was_installed = is_installed()
    lightning_mp.install()
    yield
    (lightning_mp.install if was_installed else lightning_mp.uninstall)()


def test_versions():
    versions = collect_info()["versions"]
    assert versions["lightning_mp"] == lightning_mp.__version__
    assert versions["torch"] == torch.__version__
    assert set(versions) == {
        "lightning_mp",
        "python",
        "lightning",
        "torch",
        "torchmetrics",
        "jsonargparse",
    }


def test_a_missing_distribution_is_named(monkeypatch):
    monkeypatch.setattr("lightning_mp.cli.info._DISTRIBUTIONS", ("lightning-mp-absent",))
    assert collect_info()["versions"]["lightning-mp-absent"] == "not installed"


def test_cpu_is_listed_first():
    cpu = collect_info()["devices"][0]
    assert cpu["type"] == "cpu"
    assert cpu["details"].endswith(f"{torch.get_num_threads()} threads")


@pytest.mark.parametrize("has_name", [True, False])
def test_accelerators_are_listed(monkeypatch, has_name):
    backend = SimpleNamespace()
    if has_name:
        backend.get_device_name = lambda index: f"Card {index}"
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device_type: backend)
    info = collect_info()
    assert [device["name"] for device in info["devices"]] == ["cpu", "cuda:0", "cuda:1"]
    assert not has_name or info["devices"][2]["details"] == "Card 1"
    assert not any(line.startswith("cuda") for line in info["never_ran_here"])


def test_what_never_ran_is_named(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    never = collect_info()["never_ran_here"]
    assert [line.split()[0] for line in never] == ["cuda", "xpu", "mps"]
    assert "no cuda device here" in never[0]


def test_patches_and_the_reason(monkeypatch):
    patches = collect_info()["patches"]
    assert patches["is_installed"] is True
    assert len(patches["objects"]) == 7
    lightning_mp.uninstall()
    assert collect_info()["patches"] == {
        "is_installed": False,
        "reason": "uninstall() was called",
        "objects": [],
    }
    monkeypatch.setenv("LIGHTNING_MP_NO_PATCH", "yes")
    assert collect_info()["patches"]["reason"] == "LIGHTNING_MP_NO_PATCH = 'yes'"


def test_casts_of_o1_per_device_type():
    report = native_report()
    rows = [row for row in collect_info()["kernels"] if row["operations"].startswith("O1 casts")]
    if not report:
        assert [row["implementation"] for row in rows] == ["Python mode"]
        return
    assert [row["operations"] for row in rows] == [f"O1 casts on {x.device_type}" for x in report]
    for row, slots in zip(rows, report, strict=True):
        assert f"{slots.num_ours} operators by them, {slots.num_taken} by torch" in row["reason"]
        assert row["reason"].endswith(", ".join(slots.differing) or "torch.autocast")


def test_casts_of_o1_without_the_library(monkeypatch):
    monkeypatch.setattr("lightning_mp.cli.info.load_native_library", lambda: (None, "not built"))
    row = collect_info()["kernels"][-1]
    assert row == {
        "operations": "O1 casts",
        "implementation": "Python mode",
        "reason": "not built",
    }


def test_text_and_json_say_the_same(capsys):
    main(["info", "--json"])
    info = json.loads(capsys.readouterr().out)
    assert info == collect_info()
    main(["info"])
    text = capsys.readouterr().out
    assert text == format_info(info) + "\n"
    wanted = [*info["versions"].values(), *info["patches"]["objects"], *info["never_ran_here"]]
    wanted += [value for device in info["devices"] for value in (device["name"], device["details"])]
    wanted += [value for kernel in info["kernels"] for value in kernel.values()]
    assert all(value in text for value in wanted)
    assert "Patches: installed" in text

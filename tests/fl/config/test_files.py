"""Where the configuration is looked for, and that a saved one is whole or not there."""

import os
from pathlib import Path

import pytest

from lightning_mp.fl.config import (
    CpuConfig,
    DeviceConfig,
    FlConfig,
    SimConfig,
    find_config,
    load_config,
    save_config,
)
from lightning_mp.fl.home import fl_folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_FL_CONFIG", raising=False)
    return tmp_path


def test_without_a_file_everything_has_its_default(home):
    assert find_config() is None
    assert load_config() == FlConfig()
    assert list(home.iterdir()) == []


def test_file_of_the_home_is_found(home):
    file = home / ".torch_fl" / "config.yaml"
    file.parent.mkdir()
    file.write_text("devices: [{type: cpu, count: 3}]")
    assert load_config().devices == (CpuConfig(count=3),)
    assert load_config().source == file


@pytest.mark.parametrize("form", ["absolute", "of the home", "relative"])
def test_variable_comes_first(home, monkeypatch, form):
    (home / ".torch_fl").mkdir()
    (home / ".torch_fl" / "config.yaml").write_text("not: [read")
    (home / "mine.yaml").write_text("devices: [{type: sim}]")
    monkeypatch.chdir(home)
    named = {"absolute": str(home / "mine.yaml"), "of the home": "~/mine.yaml"}
    monkeypatch.setenv("TORCH_FL_CONFIG", named.get(form, "mine.yaml"))
    assert load_config().devices == (SimConfig(),)


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("TORCH_FL_CONFIG", " ")
    assert find_config() is None


def test_a_missing_file_is_refused_where_the_variable_names_it(monkeypatch):
    monkeypatch.setenv("TORCH_FL_CONFIG", "/absent/config.yaml")
    with pytest.raises(FileNotFoundError, match=r"TORCH_FL_CONFIG = '/absent/config\.yaml', where"):
        load_config()


def test_what_cannot_be_read_is_refused(home):
    with pytest.raises(IsADirectoryError, match=r"config file = '.*' cannot be read \(Is a direct"):
        load_config(home)
    (home / "latin.yaml").write_bytes(b"logging: {path: caf\xe9}")
    with pytest.raises(ValueError, match=r"config file = '.*latin\.yaml' is not UTF-8 \(.*\); all"):
        load_config(home / "latin.yaml")


def test_a_user_without_a_home_has_the_defaults(monkeypatch):
    monkeypatch.setattr(Path, "home", _no_home)
    assert fl_folder({}) is None
    assert find_config({}) is None


def _no_home():
    raise RuntimeError("Could not determine home directory.")


def test_what_is_in_force_is_saved(home):
    file = home / ".torch_fl" / "config.yaml"
    file.parent.mkdir()
    file.write_text("devices: [{type: xpu, count: 2}]")
    save_config(home / "run" / "fl.yaml")
    saved = load_config(home / "run" / "fl.yaml")
    assert saved.devices == (DeviceConfig(type="xpu", count=2),)
    assert [path.name for path in (home / "run").iterdir()] == ["fl.yaml"]


def test_a_failed_save_leaves_what_was_there(home, monkeypatch):
    target = home / "fl.yaml"
    target.write_text("old")

    def fail(source, destination):
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is gone"):
        save_config(target, FlConfig())
    assert target.read_text() == "old"
    assert [path.name for path in home.iterdir()] == ["fl.yaml"]


def test_a_link_is_followed(home):
    (home / "real.yaml").write_text("old")
    (home / "link.yaml").symlink_to("real.yaml")
    save_config(home / "link.yaml", FlConfig())
    assert (home / "link.yaml").is_symlink()
    assert load_config(home / "real.yaml") == FlConfig()

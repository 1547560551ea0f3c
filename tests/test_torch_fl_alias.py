"""``import torch_fl``: an alias of lightning_mp.fl that gives way to a real package."""

import importlib
import importlib.util
import subprocess
import sys
from importlib.machinery import PathFinder
from types import ModuleType

import pytest

import lightning_mp
import lightning_mp.fl
from lightning_mp.fl.config import FlConfig
from lightning_mp.fl.config.yaml_tree import YamlTree
from lightning_mp.torch_fl_alias import install_alias, is_alias_installed, uninstall_alias


def forget():
    for name in [x for x in sys.modules if x.partition(".")[0] == "torch_fl"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def alias():
    was_installed = is_alias_installed()
    install_alias()
    forget()
    yield
    forget()
    (install_alias if was_installed else uninstall_alias)()


@pytest.fixture
def activations(monkeypatch):
    """Stand in for the activation of the device, and count its calls."""
    calls = []
    module = ModuleType("lightning_mp.fl.activation")
    module.activate = lambda: calls.append(1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.fixture
def real_package(tmp_path):
    folder = tmp_path / "site" / "torch_fl"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("REAL = True\n")
    (folder / "config.py").write_text("REAL = True\n")
    return folder.parent


def test_the_alias_activates_once_and_hands_everything_on(activations):
    first = importlib.import_module("torch_fl")
    second = importlib.import_module("torch_fl")
    assert first is second
    assert activations == [1]
    assert first.DeviceSpec is lightning_mp.fl.DeviceSpec
    assert first.__all__ == list(lightning_mp.fl.__all__)
    assert dir(first) == dir(lightning_mp.fl)
    assert first.__name__ == "torch_fl"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = first.nonsense


@pytest.mark.parametrize("name", ["torch_fl.config", "torch_fl.config.yaml_tree"])
def test_no_class_is_there_twice(activations, name):
    module = importlib.import_module(name)
    found = {"torch_fl.config": FlConfig, "torch_fl.config.yaml_tree": YamlTree}[name]
    assert getattr(module, found.__name__) is found
    assert sys.modules["torch_fl"].config.FlConfig is FlConfig
    real_name = name.replace("torch_fl", "lightning_mp.fl")
    assert sys.modules[real_name].__spec__.name == real_name


def test_star_import_gives_the_public_names(activations):
    names = {}
    exec("from torch_fl import *", names)
    assert set(lightning_mp.fl.__all__) <= set(names)


def test_looking_for_it_activates_nothing(activations):
    assert importlib.util.find_spec("torch_fl") is not None
    assert activations == []
    assert "torch_fl" not in sys.modules


@pytest.mark.parametrize("name", ["torch_fl.nonsense", "torch_flags", "torch_fl_more.config"])
def test_other_names_are_not_found(activations, name):
    with pytest.raises(ModuleNotFoundError, match=name.partition(".")[0]):
        importlib.import_module(name)


def test_a_real_package_comes_first(activations, real_package, monkeypatch):
    monkeypatch.syspath_prepend(real_package)
    assert importlib.import_module("torch_fl").REAL
    assert importlib.import_module("torch_fl.config").REAL
    assert activations == []


def test_a_real_package_comes_first_where_a_later_finder_has_it(
    activations, real_package, monkeypatch
):
    class Late:
        @staticmethod
        def find_spec(name, path, target=None):
            return PathFinder.find_spec(name, [str(real_package)]) if path is None else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object(), Late])
    assert importlib.import_module("torch_fl").REAL
    assert activations == []


def test_a_real_package_stays_when_the_alias_goes(activations, real_package, monkeypatch):
    monkeypatch.syspath_prepend(real_package)
    real = importlib.import_module("torch_fl")
    uninstall_alias()
    assert sys.modules["torch_fl"] is real


@pytest.mark.parametrize("cause", ["absent", "refused"])
def test_where_fl_cannot_be_used_the_import_says_why(activations, monkeypatch, cause):
    name = "lightning_mp.fl.activation"
    if cause == "absent":
        monkeypatch.setitem(sys.modules, name, None)
    else:

        def refuse():
            raise RuntimeError("no compiler was there")

        monkeypatch.setattr(sys.modules[name], "activate", refuse)
    why = "no compiler was there" if cause == "refused" else r"lightning_mp\.fl\.activation"
    message = rf"torch_fl = an alias of lightning_mp\.fl, which cannot be used here \(.*{why}.*\); "
    with pytest.raises(ImportError, match=message):
        importlib.import_module("torch_fl")
    assert "torch_fl" not in sys.modules


def test_install_and_uninstall_of_the_package_own_it(activations):
    importlib.import_module("torch_fl.config")
    was_installed = lightning_mp.connector.is_installed()
    lightning_mp.uninstall()
    try:
        assert not is_alias_installed()
        with pytest.raises(ModuleNotFoundError, match="torch_fl"):
            importlib.import_module("torch_fl")
        assert "lightning_mp.fl.config" in sys.modules
        for _ in range(2):
            lightning_mp.install()
        assert sum(type(x).__name__ == "_AliasFinder" for x in sys.meta_path) == 1
    finally:
        (lightning_mp.install if was_installed else lightning_mp.uninstall)()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", "True"),
        ("import os; os.environ['LIGHTNING_MP_NO_PATCH'] = '1'; ", "False"),
        (
            "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None; ",
            "True",
        ),
    ],
)
def test_import_puts_it_in_and_activates_nothing(before, found):
    code = (
        f"{before}import lightning_mp, importlib.util, sys, torch; "
        "print(importlib.util.find_spec('torch_fl') is not None); "
        "print('torch_fl' in sys.modules, torch._C._get_privateuse1_backend_name())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == [found, "False", "privateuseone"], run.stderr

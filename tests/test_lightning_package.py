import sys
from types import SimpleNamespace

import pytest

from lightning_mp import lightning_package
from lightning_mp.lightning_package import PACKAGE_VARIABLE, find_package

LIGHTNING, STANDALONE = "lightning", "pytorch_lightning"
MODULES = {LIGHTNING: "lightning.pytorch", STANDALONE: "pytorch_lightning"}


@pytest.fixture
def arrange(monkeypatch):
    def set_up(installed, imported, asked=None):
        specs = {name: SimpleNamespace() for name in installed}
        monkeypatch.setattr(lightning_package, "find_spec", specs.get)
        for name, module in MODULES.items():
            monkeypatch.delitem(sys.modules, module, raising=False)
            if name in imported:
                monkeypatch.setitem(sys.modules, module, SimpleNamespace())
        monkeypatch.delenv(PACKAGE_VARIABLE, raising=False)
        if asked is not None:
            monkeypatch.setenv(PACKAGE_VARIABLE, asked)

    return set_up


@pytest.mark.parametrize(
    ("installed", "imported", "asked", "expected"),
    [
        ([LIGHTNING, STANDALONE], [], None, LIGHTNING),
        ([LIGHTNING, STANDALONE], [STANDALONE], None, STANDALONE),
        ([LIGHTNING, STANDALONE], [LIGHTNING, STANDALONE], None, LIGHTNING),
        ([LIGHTNING, STANDALONE], [LIGHTNING], None, LIGHTNING),
        ([STANDALONE], [], None, STANDALONE),
        ([LIGHTNING], [], None, LIGHTNING),
        ([], [], None, None),
        ([LIGHTNING, STANDALONE], [LIGHTNING], STANDALONE, STANDALONE),
        ([LIGHTNING, STANDALONE], [STANDALONE], LIGHTNING, LIGHTNING),
        ([LIGHTNING, STANDALONE], [STANDALONE], "", STANDALONE),
        ([LIGHTNING, STANDALONE], [STANDALONE], f" {LIGHTNING} ", LIGHTNING),
        ([], [], LIGHTNING, None),
    ],
)
def test_choice(arrange, installed, imported, asked, expected):
    arrange(installed, imported, asked)
    assert find_package() == expected


@pytest.mark.parametrize(
    ("installed", "asked", "error", "message"),
    [
        (
            [LIGHTNING],
            "pl",
            ValueError,
            "LIGHTNING_MP_PACKAGE = 'pl'; allowed are lightning, pytorch_lightning; set one",
        ),
        ([], "Lightning", ValueError, "LIGHTNING_MP_PACKAGE = 'Lightning'; allowed are lightning,"),
        (
            [LIGHTNING],
            STANDALONE,
            RuntimeError,
            "'pytorch_lightning', which is not installed; allowed here: lightning; unset",
        ),
        (
            [STANDALONE],
            LIGHTNING,
            RuntimeError,
            "'lightning', which is not installed; allowed here: pytorch_lightning; unset",
        ),
    ],
)
def test_refused(arrange, installed, asked, error, message):
    arrange(installed, [], asked)
    with pytest.raises(error, match=message):
        find_package()


def test_a_blocked_module_is_not_installed(monkeypatch):
    monkeypatch.delenv(PACKAGE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, LIGHTNING, None)
    monkeypatch.setitem(sys.modules, STANDALONE, None)
    assert find_package() is None


def test_a_module_without_a_spec_is_installed(monkeypatch):
    monkeypatch.delenv(PACKAGE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, LIGHTNING, SimpleNamespace(__spec__=None))
    monkeypatch.setitem(sys.modules, STANDALONE, None)
    assert find_package() == LIGHTNING

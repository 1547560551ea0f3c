import os
import subprocess
import sys
import typing
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer import trainer as trainer_module
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

import lightning_mp
from lightning_mp.connector import (
    StockTrainerSeams,
    is_installed,
    is_opted_out,
    patched_objects,
)
from lightning_mp.precision import AmpPrecision
from lightning_mp.precision_input import PrecisionLevel


def stock_trainer(**kwargs: Any) -> L.Trainer:
    """The stock Trainer; what the seams add is unknown to its static types."""
    quiet = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "devices": 1}
    return L.Trainer(**{**quiet, **kwargs})


@pytest.fixture
def stock():
    """Lightning without patches; the module's own are put back afterwards."""
    was_installed = is_installed()
    lightning_mp.uninstall()
    yield
    if was_installed:
        lightning_mp.install()


@pytest.fixture
def installed(stock):
    lightning_mp.install()
    yield
    lightning_mp.uninstall()


def trainer_state():
    """Everything that a patch may touch, by identity."""
    state = [_AcceleratorConnector.__init__, L.Trainer.__init__]
    function = L.Trainer.__init__
    while function is not None:
        state += [function.__annotations__, function.__annotations__["precision"]]
        function = getattr(function, "__wrapped__", None)
    return state


def assert_same_objects(left, right):
    assert len(left) == len(right)
    assert all(a is b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("O0", "O0"),
        ("O2", ("O2", "fp16")),
        ("O2-bf16", ("O2", "bf16")),
        ("O3", ("O3", "fp16")),
        ("O3-bf16", ("O3", "bf16")),
    ],
)
def test_stock_trainer_knows_the_levels(installed, precision, expected):
    plugin = stock_trainer(precision=precision).precision_plugin
    assert isinstance(plugin, AmpPrecision)
    assert type(plugin) is AmpPrecision
    given = plugin.opt_level if precision == "O0" else (plugin.opt_level, plugin.half_dtype)
    assert given == expected


@pytest.mark.parametrize("precision", [None, "32", 64, "bf16-mixed", "bf16-true"])
def test_precisions_of_lightning_are_untouched(installed, precision):
    plugin = stock_trainer(precision=precision).precision_plugin
    assert not isinstance(plugin, AmpPrecision)
    lightning_mp.uninstall()
    assert type(stock_trainer(precision=precision).precision_plugin) is type(plugin)


def test_other_errors_stay_those_of_lightning(installed):
    with pytest.raises(ValueError, match="Precision 'nonsense' is invalid"):
        stock_trainer(precision="nonsense")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        stock_trainer(precisionn="O2")


@pytest.mark.parametrize("precision", ["O7", "02", "o2"])
def test_near_misses(installed, precision):
    with pytest.raises(ValueError, match=r"O2-bf16.*letter O"):
        stock_trainer(precision=precision)


def test_string_and_precision_plugin_are_refused_together(installed):
    with pytest.raises(ValueError, match=r"precision = 'O2' and plugins = .*DoublePrecision"):
        stock_trainer(precision="O2", plugins=[DoublePrecision()])


def test_plugins_of_the_caller_are_not_changed(installed):
    checkpoint_io = TorchCheckpointIO()
    plugins = [checkpoint_io]
    trainer = stock_trainer(precision="O2", plugins=plugins)
    assert plugins == [checkpoint_io]
    assert trainer.strategy.checkpoint_io is checkpoint_io


def test_unsupported_strategy_is_refused_for_string_and_plugin(installed):
    for how in ({"precision": "O2"}, {"plugins": AmpPrecision()}):
        with pytest.raises(ValueError, match="strategy = 'fsdp' with an opt level"):
            stock_trainer(strategy="fsdp", **how)


def test_default_from_the_environment(installed, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_PRECISION", "O2")
    assert isinstance(stock_trainer().precision_plugin, AmpPrecision)


def test_uninstall_restores_the_very_objects(stock):
    before = trainer_state()
    for _ in range(2):
        lightning_mp.install()
        during = trainer_state()
        assert during[0] is not before[0]
        assert set(typing.get_args(PrecisionLevel)) <= flat_literals(during[-1])
        assert_same_objects(during[1:2], before[1:2])
        lightning_mp.install()
        assert_same_objects(trainer_state(), during)
        lightning_mp.uninstall()
        assert_same_objects(trainer_state(), before)
        lightning_mp.uninstall()
        assert_same_objects(trainer_state(), before)
    with pytest.raises(ValueError, match="Precision 'O2' is invalid"):
        stock_trainer(precision="O2")


def flat_literals(annotation):
    values = set()
    for argument in typing.get_args(annotation):
        values |= flat_literals(argument) if typing.get_args(argument) else {argument}
    return values


def test_status_follows(stock):
    assert not is_installed()
    assert patched_objects() == ()
    lightning_mp.install()
    assert is_installed()
    connector, hint = patched_objects()
    assert connector.endswith("_AcceleratorConnector.__init__")
    assert hint.endswith("Trainer.__init__ (annotation of precision)")


def test_uninstall_refuses_to_drop_a_later_patch(stock, monkeypatch):
    lightning_mp.install()
    with monkeypatch.context() as patch:
        patch.setattr(_AcceleratorConnector, "__init__", lambda self: None)
        with pytest.raises(RuntimeError, match="undo the later patch first"):
            lightning_mp.uninstall()
        assert is_installed()
    lightning_mp.uninstall()
    assert not is_installed()


class Moved:
    def __init__(self, precision_and_more=None, plugins=None, strategy=None):
        pass


@pytest.mark.parametrize(
    "what", ["connector missing", "arguments renamed", "hint gone", "hint str"]
)
def test_moved_lightning_is_loud_and_nothing_is_patched(stock, monkeypatch, what):
    hints = L.Trainer.__init__.__annotations__
    if what == "connector missing":
        monkeypatch.delattr(trainer_module, "_AcceleratorConnector")
    elif what == "arguments renamed":
        monkeypatch.setattr(trainer_module, "_AcceleratorConnector", Moved)
    elif what == "hint gone":
        monkeypatch.delitem(hints, "precision")
    else:
        monkeypatch.setitem(hints, "precision", "_PRECISION_INPUT | None")
    original_init, original_hints = _AcceleratorConnector.__init__, dict(hints)
    seams = StockTrainerSeams()
    with pytest.raises(RuntimeError, match="LIGHTNING_MP_NO_PATCH=1") as error:
        seams.install()
    assert L.__version__ in str(error.value)
    assert ">=2.4, <2.7" in str(error.value)
    assert not seams.is_installed
    assert _AcceleratorConnector.__init__ is original_init
    assert hints == original_hints
    assert Moved.__init__.__qualname__ == "Moved.__init__"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False),
        ("", False),
        ("0", False),
        ("false", False),
        (" No ", False),
        ("off", False),
        ("1", True),
        ("true", True),
        ("YES", True),
        ("anything", True),
    ],
)
def test_opt_out_variable(monkeypatch, value, expected):
    if value is None:
        monkeypatch.delenv("LIGHTNING_MP_NO_PATCH", raising=False)
    else:
        monkeypatch.setenv("LIGHTNING_MP_NO_PATCH", value)
    assert is_opted_out() is expected


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [("1", "False"), ("0", "True")])
def test_import_heeds_the_opt_out(value, expected):
    code = (
        "from lightning.pytorch.trainer.connectors.accelerator_connector import"
        " _AcceleratorConnector as c\n"
        "before = c.__init__\n"
        "import lightning_mp, lightning_mp.connector\n"
        "assert lightning_mp.connector.is_installed() is (c.__init__ is not before)\n"
        "trainer = lightning_mp.Trainer(precision='O2', logger=False)\n"
        "assert trainer.precision_plugin.opt_level == 'O2'\n"
        "print(lightning_mp.connector.is_installed())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LIGHTNING_MP_NO_PATCH": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, expected), run.stderr

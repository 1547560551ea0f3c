import os
import subprocess
import sys
import typing
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric import fabric as fabric_module
from lightning.fabric.connector import _Connector
from lightning.fabric.plugins import MixedPrecision as FabricMixedPrecision
from lightning.fabric.wrappers import _FabricModule, _FabricOptimizer
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer import trainer as trainer_module
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

import lightning_mp
from lightning_mp.checkpoint_io import AtomicCheckpointIO
from lightning_mp.connector import (
    StockTrainerSeams,
    is_installed,
    is_opted_out,
    patched_objects,
)
from lightning_mp.fabric_precision import AmpFabricPrecision
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


def stock_fabric(**kwargs: Any) -> Fabric:
    return Fabric(**{"accelerator": "cpu", "devices": 1, **kwargs})


def stock_state():
    """Everything that a patch may touch, by identity; the hints come last."""
    patched = [_AcceleratorConnector, _Connector, _FabricModule, _FabricOptimizer]
    state = [cls.__init__ for cls in patched]
    for function in (Fabric.__init__, L.Trainer.__init__):
        state.append(function)
        while function is not None:
            state += [function.__annotations__, function.__annotations__["precision"]]
            function = getattr(function, "__wrapped__", None)
    return state


def make_sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)


def assert_same_objects(left, right):
    assert len(left) == len(right)
    assert all(a is b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("O0", "O0"),
        ("O1", ("O1", "fp16")),
        ("O1-bf16", ("O1", "bf16")),
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


def test_a_plugin_may_be_the_precision(installed):
    plugin, fabric_plugin = AmpPrecision("O1"), AmpFabricPrecision("O1")
    assert stock_trainer(precision=plugin).precision_plugin is plugin
    assert stock_fabric(precision=fabric_plugin).strategy.precision is fabric_plugin


@pytest.mark.parametrize("precision", typing.get_args(PrecisionLevel))
def test_stock_fabric_knows_the_levels(installed, precision):
    fabric = stock_fabric(precision=precision)
    assert type(fabric.strategy.precision) is AmpFabricPrecision
    assert fabric.strategy.precision.precision == precision
    assert type(fabric.strategy.checkpoint_io) is AtomicCheckpointIO


@pytest.mark.parametrize("precision", [None, "32", 64, "bf16-mixed", "bf16-true"])
def test_precisions_of_stock_fabric_are_untouched(installed, precision):
    fabric = stock_fabric(precision=precision)
    fabric.setup(torch.nn.Linear(3, 3), make_sgd())
    assert not isinstance(fabric.strategy.precision, AmpFabricPrecision)
    lightning_mp.uninstall()
    plain = stock_fabric(precision=precision)
    assert type(plain.strategy.precision) is type(fabric.strategy.precision)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"precision": "O7"}, ValueError, r"O2-bf16.*letter O"),
        ({"precision": "nonsense"}, ValueError, "Precision 'nonsense' is invalid"),
        (
            {"precision": "O2", "plugins": FabricMixedPrecision("bf16-mixed", "cpu")},
            ValueError,
            r"one precision plugin per Fabric.*AmpFabricPrecision\(opt_level='O2'",
        ),
        ({"plugins": [AmpPrecision()]}, TypeError, r"AmpPrecision.* with Fabric; allowed: AmpFab"),
        ({"strategy": "fsdp", "precision": "O2"}, ValueError, "strategy = 'fsdp' with an opt"),
        ({"strategy": "dp", "plugins": AmpFabricPrecision()}, ValueError, "strategy = 'dp' with"),
    ],
)
def test_what_stock_fabric_refuses(installed, arguments, error, message):
    with pytest.raises(error, match=message):
        stock_fabric(**arguments)


def test_the_plugin_of_fabric_is_refused_by_the_trainer(installed):
    with pytest.raises(TypeError, match=r"AmpFabricPrecision.* with Trainer; allowed: AmpPrec"):
        stock_trainer(plugins=[AmpFabricPrecision()])


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
    before = stock_state()
    for _ in range(2):
        lightning_mp.install()
        during = stock_state()
        changed = [a is not b for a, b in zip(before, during, strict=True)]
        assert all(changed[:4])
        assert set(typing.get_args(PrecisionLevel)) <= flat_literals(during[-1])
        assert set(typing.get_args(PrecisionLevel)) <= flat_literals(during[6])
        lightning_mp.install()
        assert_same_objects(stock_state(), during)
        lightning_mp.uninstall()
        assert_same_objects(stock_state(), before)
        lightning_mp.uninstall()
        assert_same_objects(stock_state(), before)
    for make in (stock_trainer, stock_fabric):
        with pytest.raises(ValueError, match="Precision 'O2' is invalid"):
            make(precision="O2")


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
    endings = [
        "_AcceleratorConnector.__init__",
        "Trainer.__init__ (annotation of precision)",
        "_Connector.__init__",
        "_FabricModule.__init__",
        "_FabricOptimizer.__init__",
        "Fabric.__init__ (annotation of precision)",
        "meta_path (import torch_fl)",
    ]
    for name, ending in zip(patched_objects(), endings, strict=True):
        assert name.endswith("." + ending)


@pytest.mark.parametrize("cls", [_AcceleratorConnector, _Connector, _FabricOptimizer])
def test_uninstall_refuses_to_drop_a_later_patch(stock, monkeypatch, cls):
    lightning_mp.install()
    with monkeypatch.context() as patch:
        patch.setattr(cls, "__init__", lambda self: None)
        during = stock_state()
        with pytest.raises(RuntimeError, match="undo the later patch first"):
            lightning_mp.uninstall()
        assert_same_objects(stock_state(), during)
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
    for install in (seams.install, lightning_mp.install):
        with pytest.raises(RuntimeError, match="LIGHTNING_MP_NO_PATCH=1") as error:
            install()
        assert L.__version__ in str(error.value)
        assert ">=2.4, <2.7" in str(error.value)
    assert not seams.is_installed
    assert not is_installed()
    assert _AcceleratorConnector.__init__ is original_init
    assert hints == original_hints
    assert Moved.__init__.__qualname__ == "Moved.__init__"


@pytest.mark.parametrize("what", ["_Connector missing", "arguments renamed", "hint gone"])
def test_moved_fabric_leaves_the_trainer_unpatched_too(stock, monkeypatch, what):
    if what == "_Connector missing":
        monkeypatch.delattr(fabric_module, "_Connector")
    elif what == "arguments renamed":
        monkeypatch.setattr(fabric_module, "_Connector", Moved)
    else:
        monkeypatch.delitem(Fabric.__init__.__annotations__, "precision")
    init = _AcceleratorConnector.__init__
    with pytest.raises(RuntimeError, match="AmpFabricPrecision"):
        lightning_mp.install()
    assert not is_installed()
    assert patched_objects() == ()
    assert _AcceleratorConnector.__init__ is init


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
        "from lightning.fabric import Fabric\n"
        "plugin = lightning_mp.AmpFabricPrecision()\n"
        "assert Fabric(plugins=[plugin]).strategy.precision is plugin\n"
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

import inspect
import json
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import TorchCheckpointIO

import lightning_mp
from lightning_mp.connector import is_installed
from lightning_mp.precision import AmpPrecision

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "accelerator": "cpu",
    "devices": 1,
}


@pytest.fixture(params=[True, False], ids=["patched", "unpatched"], autouse=True)
def seams(request):
    was_installed = is_installed()
    (lightning_mp.install if request.param else lightning_mp.uninstall)()
    yield
    (lightning_mp.install if was_installed else lightning_mp.uninstall)()


@pytest.fixture
def parse(monkeypatch):
    """Parse arguments with LightningCLI; gives back the CLI, its Trainer built but not run."""
    monkeypatch.setattr("sys.argv", ["program"])
    # LightningCLI itself calls what jsonargparse has deprecated.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

    def parse(*args, **kwargs):
        return LightningCLI(
            BoringModel,
            trainer_class=lightning_mp.Trainer,
            run=False,
            args=[*args, "--trainer.accelerator=cpu", "--trainer.logger=false"],
            seed_everything_default=13,
            **kwargs,
        )

    return parse


def test_levels_become_the_plugin():
    plugin = lightning_mp.Trainer(precision="O3-bf16", **QUIET).precision_plugin
    assert type(plugin) is AmpPrecision
    assert (plugin.opt_level, plugin.half_dtype) == ("O3", "bf16")


def test_a_plugin_may_be_the_precision(parse):
    plugin = AmpPrecision("O1")
    assert lightning_mp.Trainer(precision=plugin, **QUIET).precision_plugin is plugin
    arguments = {"class_path": "lightning_mp.AmpPrecision", "init_args": {"allow_banned": True}}
    cli = parse(f"--trainer.precision={json.dumps(arguments)}")
    assert type(cli.trainer.precision_plugin) is AmpPrecision


def test_is_a_stock_trainer():
    trainer = lightning_mp.Trainer(precision="bf16-mixed", max_epochs=7, **QUIET)
    assert isinstance(trainer, L.Trainer)
    assert trainer.max_epochs == 7
    assert trainer.precision == "bf16-mixed"


def test_other_plugins_are_kept():
    checkpoint_io = TorchCheckpointIO()
    trainer = lightning_mp.Trainer(precision="O2", plugins=checkpoint_io, **QUIET)
    assert trainer.strategy.checkpoint_io is checkpoint_io
    assert isinstance(trainer.precision_plugin, AmpPrecision)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"precision": "O7"}, r"O2-bf16.*letter O"),
        (
            {"precision": "O2", "plugins": [DoublePrecision()]},
            r"'O2' and plugins = .*DoublePrecision",
        ),
        ({"precision": "O2", "strategy": "fsdp"}, "strategy = 'fsdp' with an opt level"),
    ],
)
def test_refused(kwargs, match):
    with pytest.raises(ValueError, match=match):
        lightning_mp.Trainer(**kwargs, **QUIET)


def test_signature_is_the_stock_one_plus_the_levels():
    own = inspect.signature(lightning_mp.Trainer).parameters
    assert list(own) == list(inspect.signature(L.Trainer).parameters)
    assert "O2-bf16" in str(own["precision"].annotation)


@pytest.mark.parametrize(
    ("variable", "value", "read", "expected"),
    [
        ("PL_TRAINER_PRECISION", "O2", lambda t: type(t.precision_plugin), AmpPrecision),
        ("PL_TRAINER_MAX_EPOCHS", "13", lambda t: t.max_epochs, 13),
    ],
)
def test_defaults_from_the_environment(monkeypatch, variable, value, read, expected):
    monkeypatch.setenv(variable, value)
    assert read(lightning_mp.Trainer(**QUIET)) == expected


def test_argument_beats_the_environment(monkeypatch):
    monkeypatch.setenv("PL_TRAINER_PRECISION", "O2")
    assert lightning_mp.Trainer(precision="32-true", **QUIET).precision == "32-true"


def test_cli_takes_the_levels(parse):
    cli = parse("--trainer.precision=O2-bf16", "--trainer.max_epochs=7")
    assert type(cli.trainer) is lightning_mp.Trainer
    assert cli.trainer.max_epochs == 7
    plugin = cli.trainer.precision_plugin
    assert isinstance(plugin, AmpPrecision)
    assert (plugin.opt_level, plugin.half_dtype) == ("O2", "bf16")


def test_cli_reads_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PL_TRAINER__PRECISION", "O2")
    cli = parse(parser_kwargs={"default_env": True})
    assert isinstance(cli.trainer.precision_plugin, AmpPrecision)


def test_cli_help_documents_the_arguments(parse, capsys):
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "An opt level (letter O; a plain level is fp16)" in text
    assert "The devices to use." in text
    assert "--trainer.kwargs" not in text


def test_cli_rejects_an_unknown_level(parse, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse("--trainer.precision=O7")
    assert "'O0', 'O1', 'O1-bf16', 'O2', 'O2-bf16', 'O3', 'O3-bf16'" in capsys.readouterr().err

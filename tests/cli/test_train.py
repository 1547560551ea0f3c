import sys

import pytest
import yaml
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_mp.cli import main
from lightning_mp.cli.train import run_trainer
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer import Trainer

MODEL = "lightning.pytorch.demos.boring_classes.BoringModel"
QUIET = {"accelerator": "cpu", "logger": False}
DATA = "lightning.pytorch.demos.boring_classes.BoringDataModule"


@pytest.fixture(autouse=True)
def command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["lightning-mp"])
    # LightningCLI itself calls what jsonargparse has deprecated.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


@pytest.fixture
def config(tmp_path):
    """Write a YAML file with the given trainer section; gives back its path."""

    def write(trainer, **other):
        path = tmp_path / "mine.yaml"
        content = {"model": {"class_path": MODEL}, "data": {"class_path": DATA}, "trainer": trainer}
        path.write_text(yaml.safe_dump({**content, **other}))
        return str(path)

    return write


def printed_config(capsys, *args):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", *args, "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)


def plugin_of(config_path, monkeypatch):
    """Build everything, but leave out the loop."""
    monkeypatch.setattr(Trainer, "fit", lambda self, model, datamodule=None, ckpt_path=None: None)
    return run_trainer(["fit", "--config", config_path]).trainer.precision_plugin


@pytest.mark.parametrize("precision", ["O0", "O2", "O2-bf16", "O3", "O3-bf16"])
def test_precision_round_trips(capsys, config, precision):
    printed = printed_config(capsys, "--config", config({"precision": precision}))
    assert printed["trainer"]["precision"] == precision
    assert printed["seed_everything"] == 0


@pytest.mark.parametrize(
    ("precision", "expected"), [("O2", ("O2", "fp16")), ("O3-bf16", ("O3", "bf16"))]
)
def test_precision_reaches_the_trainer(config, monkeypatch, precision, expected):
    plugin = plugin_of(config({**QUIET, "precision": precision}), monkeypatch)
    assert type(plugin) is AmpPrecision
    assert (plugin.opt_level, plugin.half_dtype) == expected


@pytest.mark.parametrize("class_path", ["lightning_mp.AmpPrecision", "AmpPrecision"])
@pytest.mark.parametrize("loss_scale", [128.0, 128, "dynamic"])
def test_plugin_by_class_path(capsys, config, monkeypatch, class_path, loss_scale):
    init_args = {"opt_level": "O2", "half_dtype": "bf16", "loss_scale": loss_scale}
    plugin = {"class_path": class_path, "init_args": init_args}
    path = config({**QUIET, "plugins": [plugin]})
    (printed,) = printed_config(capsys, "--config", path)["trainer"]["plugins"]
    assert printed["init_args"]["loss_scale"] == loss_scale
    built = plugin_of(path, monkeypatch)
    assert isinstance(built, AmpPrecision)
    assert built.half_dtype == "bf16"


@pytest.mark.parametrize(
    ("args", "messages"),
    [
        (
            ["--trainer.precision=O7"],
            ["trainer.precision", "'O0', 'O1', 'O1-bf16', 'O2', 'O2-bf16', 'O3', 'O3-bf16'"],
        ),
        (
            ["--trainer.precision=02"],
            ["trainer.precision", "'O0', 'O1', 'O1-bf16', 'O2', 'O2-bf16', 'O3', 'O3-bf16'"],
        ),
        (["--trainer.precison=O2"], ["trainer.precison"]),
        (
            ["--trainer.plugins=AmpPrecision", "--trainer.plugins.init_args.opt_levl=O2"],
            ["opt_levl", "did you mean 'opt_level'?"],
        ),
        (
            ["--trainer.plugins=AmpPrecision", "--trainer.plugins.init_args.opt_level=O7"],
            ["opt_level", "'O0', 'O1', 'O2', 'O3'"],
        ),
        (
            ["--trainer.plugins=AmpPrecision", "--trainer.plugins.init_args.loss_scale=static"],
            ["loss_scale", "'dynamic'"],
        ),
        (["--model=mine.Absent"], ["mine.Absent"]),
    ],
)
def test_wrong_values_exit_with_2_and_a_message(capsys, args, messages):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", f"--model={MODEL}", *args])
    error = capsys.readouterr().err
    assert all(message in error for message in messages), error


@pytest.mark.parametrize(
    ("trainer", "other", "message"),
    [
        ({"precison": "O2"}, {}, "precison"),
        ({}, {"trainr": {"precision": "O2"}}, "trainr"),
        ({}, {"model": {"class_path": MODEL, "init_args": {"widht": 7}}}, "widht"),
    ],
)
def test_unknown_yaml_keys_exit_with_2(capsys, config, trainer, other, message):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", config(trainer, **other)])
    assert message in capsys.readouterr().err


def test_config_before_the_command(capsys, config, tmp_path):
    nested = tmp_path / "nested.yaml"
    section = {"model": {"class_path": MODEL}, "trainer": {"precision": "O2"}}
    nested.write_text(yaml.safe_dump({"fit": section}))
    with pytest.raises(SystemExit, match="0"):
        main([f"--config={nested}", "fit", "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["precision"] == "O2"


@pytest.mark.filterwarnings("ignore")
def test_all_four_loops_run_and_the_config_of_the_user_is_kept(config, tmp_path):
    trainer = {
        "accelerator": "cpu",
        "devices": 1,
        "precision": "32-true",
        "max_steps": 3,
        "limit_val_batches": 1,
        "limit_test_batches": 1,
        "limit_predict_batches": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    path = config(trainer)
    own = tmp_path / "config.yaml"
    own.write_bytes((tmp_path / "mine.yaml").read_bytes())
    before = own.read_bytes()
    for command in ("fit", "fit", "validate", "test", "predict"):
        cli = run_trainer([command, "--config", str(own)])
        assert isinstance(cli.model, BoringModel)
        assert cli.trainer.state.finished
        if command == "fit":
            assert cli.trainer.global_step == 3
    assert own.read_bytes() == before
    resolved = yaml.safe_load((tmp_path / "resolved_config.yaml").read_text())
    assert resolved["trainer"]["max_steps"] == 3
    assert path

"""LightningCLI takes each callback with all of its arguments, and hands them on."""

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from lightning_mp import callbacks

ARGUMENTS = {
    "GradientNormMonitor": {
        "num_watched_steps": 7, "spike_factor": 5.5, "average_steps": 13, "on_spike": "stop",
    },
    "LearningRateScaling": {
        "base_global_batch_size": 64, "rule": "sqrt", "scale_betas": True, "warmup_samples": 0,
        "warmup_fraction": 0.03, "global_batch_size": 128,
    },
    "GradientNoiseScaleMonitor": {
        "every_n_steps": 3, "average_steps": 50, "per_device_batch_size": 8,
    },
    "LossCurveMonitor": {
        "every_n_steps": 7, "on_verdict": "stop", "metric": "train/loss", "window_steps": 30,
    },
    "DataStallMonitor": {"every_n_steps": 7, "max_wait_fraction": 0.25},
    "SampleIntervalValidation": {"every_n_samples": 1000, "global_batch_size": 8},
    "MemoryBreakdown": {
        "at_steps": [1, 5], "predict_per_device_batch_sizes": [64], "num_modules": 3,
    },
}  # fmt: skip
WRONG = [
    ("GradientNormMonitor", {"on_spike": "halt"}, "on_spike"),
    ("LearningRateScaling", {"base_global_batch_size": 64, "rule": "cubic"}, "rule"),
    ("LearningRateScaling", {}, "base_global_batch_size"),
    ("LossCurveMonitor", {"on_verdict": "cry"}, "on_verdict"),
    ("DataStallMonitor", {"max_wait_fraction": "all"}, "max_wait_fraction"),
    ("MemoryBreakdown", {"at_steps": 1}, "at_steps"),
    ("SampleIntervalValidation", {}, "every_n_samples"),
    ("GradientNoiseScaleMonitor", {"every_n_steps": "all"}, "every_n_steps"),
]


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # LightningCLI itself calls what jsonargparse has deprecated.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


def build(tmp_path, name, arguments):
    path = tmp_path / "mine.yaml"
    callback = {"class_path": f"lightning_mp.callbacks.{name}", "init_args": arguments}
    trainer = {"accelerator": "cpu", "logger": False, "callbacks": [callback]}
    path.write_text(yaml.safe_dump({"trainer": trainer}))
    cli = LightningCLI(
        BoringModel, BoringDataModule, run=False, args=["--config", str(path)],
        seed_everything_default=False, save_config_callback=None,
    )  # fmt: skip
    return next(item for item in cli.trainer.callbacks if type(item).__name__ == name)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_reach_the_callback(tmp_path, name):
    callback = build(tmp_path, name, ARGUMENTS[name])
    assert type(callback) is getattr(callbacks, name)
    found = {key: getattr(callback, key) for key in ARGUMENTS[name]}
    assert found == ARGUMENTS[name]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_wrong_arguments_are_named(tmp_path, capsys, name, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        build(tmp_path, name, arguments)
    assert message in capsys.readouterr().err

"""Every shipped YAML file parses and trains through the command line."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
INIT_SCALE = 2.0**24
NUM_WARMUP_STEPS = 20


def run_cli(folder, *args):
    """Run the command line in a folder and return all that it prints."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread: several fight for the cores, at many times the cost, where tests run side by side.
    settings = {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "lightning_mp", *args],
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


def read_report(output):
    """Return the rows of the report that a run ends with."""
    rows = {}
    for line in output.split("Run report\n")[1].splitlines():
        if match := re.fullmatch(r"  (\S+(?: \S+)*) {2,}(\S.*)", line.rstrip()):
            rows[match[1]] = match[2]
    return rows


def read_events(log_dir, tag):
    """Return a scalar of a TensorBoard log by step."""
    # The default keeps a sample of 10,000; 0 keeps all.
    events = EventAccumulator(str(log_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_there_are_configs():
    names = {path.stem for path in CONFIGS}
    assert {"digits_o0", "digits_o1", "digits_o2", "digits_o2_fp16", "digits_o3"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_parses_and_names_itself(config, tmp_path):
    printed = run_cli(tmp_path, "fit", "--config", str(config), "--print_config")
    assert f"name: {config.stem}\n" in printed
    assert f"--config configs/{config.name}\n" in config.read_text()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_trains_a_few_steps(config, tmp_path):
    short = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "7")
    report = read_report(run_cli(tmp_path, "fit", "--config", str(config), *short))
    assert report["optimizer steps"] == "7"
    assert (tmp_path / report["best checkpoint"]).is_file()
    last = torch.load(tmp_path / report["last checkpoint"], weights_only=True)
    assert last["global_step"] == int(report["optimizer steps"])
    assert list((tmp_path / report["log"]).glob("events.out.tfevents.*"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_trains_on_two_processes_from_the_command_line(strategy, tmp_path):
    config = ROOT / "configs" / "digits_o2.yaml"
    short = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "7")
    two = ("--trainer.accelerator=cpu", "--trainer.devices=2", f"--trainer.strategy={strategy}")
    output = run_cli(tmp_path, "fit", "--config", str(config), *short, *two)
    assert read_report(output)["optimizer steps"] == "7"
    assert output.count("Run report\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_o2_reaches_its_accuracy(tmp_path):
    config = str(ROOT / "configs" / "digits_o2.yaml")
    report = read_report(run_cli(tmp_path, "fit", "--config", config))
    assert report["precision"] == "O2-bf16"
    assert float(report["test/accuracy"]) >= 0.97
    assert report["skipped steps"] == "0"
    sizes = list(read_events(tmp_path / report["log"], "lightning_mp/batch_size/global").values())
    assert (sizes[0], max(sizes)) == (16, 64)
    assert read_events(tmp_path / report["log"], "test/accuracy") == {
        int(report["optimizer steps"]): pytest.approx(float(report["test/accuracy"]), abs=1e-4)
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_o2_fp16_overflows_holds_the_rate_and_recovers(tmp_path):
    config = str(ROOT / "configs" / "digits_o2_fp16.yaml")
    output = run_cli(tmp_path, "fit", "--config", config)
    report = read_report(output)
    assert float(report["test/accuracy"]) >= 0.97
    skipped = [int(step) for step in re.findall(r"step (\d+), optimizer 0: overflow", output)]
    assert len(skipped) == int(report["skipped steps"]) >= 3
    assert skipped[:3] == [0, 1, 2]
    assert float(report["loss scale"]) == INIT_SCALE / 2 ** len(skipped)
    rates = read_events(tmp_path / report["log"], "lr-AdamW")
    assert list(rates) == list(range(int(report["optimizer steps"])))
    for step, (rate, next_rate) in enumerate(itertools.pairwise(rates.values())):
        if step in skipped:
            assert next_rate == rate
        elif step < NUM_WARMUP_STEPS:
            assert next_rate > rate

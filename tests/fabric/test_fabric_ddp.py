"""AmpFabricPrecision on two CPU processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.tolerances import HALF_TRAINING
from support.training import is_equal

SCRIPT = Path(__file__).parent / "ddp_script.py"

pytestmark = pytest.mark.slow


def launch(folder, strategy, precision, accumulate=1, num_losses=1, bad_rank=-1):
    folder.mkdir()
    arguments = [str(folder), strategy, precision, str(accumulate), str(num_losses), str(bad_rank)]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run(folder, strategy, *arguments, **kwargs):
    done = launch(folder, strategy, *arguments, **kwargs)
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["rank0.pt"] if strategy == "auto" else ["rank0.pt", "rank1.pt"]
    return [torch.load(folder / name) for name in names]


@pytest.mark.parametrize(
    ("strategy", "precision", "accumulate", "num_losses"),
    [
        ("ddp", "O1", 2, 1),
        ("ddp", "O2", 1, 1),
        ("ddp", "O2", 2, 1),
        ("ddp_spawn", "O2-bf16", 2, 1),
        ("ddp_fork", "O2", 4, 1),
        ("ddp", "O1-bf16", 1, 2),
        ("ddp", "O2", 2, 2),
    ],
)
def test_two_processes_agree_with_one(tmp_path, strategy, precision, accumulate, num_losses):
    arguments = (precision, accumulate, num_losses)
    first, second = run(tmp_path / "two", strategy, *arguments)
    assert is_equal(first["weights"], second["weights"])
    assert first["skipped"] == second["skipped"] == 0
    (whole,) = run(tmp_path / "one", "auto", *arguments)
    for name, value in whole["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, **HALF_TRAINING)
    saved = torch.load(tmp_path / "two" / "end.ckpt", weights_only=True)
    assert is_equal(saved["model"], first["weights"])
    assert first["resumed"] == second["resumed"] == first["scales"]


@pytest.mark.parametrize(
    ("precision", "accumulate", "num_losses"),
    [("O1", 1, 1), ("O2", 2, 1), ("O2-bf16", 1, 1), ("O2", 2, 2)],
)
def test_overflow_on_one_rank_skips_on_both(tmp_path, precision, accumulate, num_losses):
    """With accumulation the overflow happens while gradients are not exchanged yet."""
    arguments = (precision, accumulate, num_losses)
    first, second = run(tmp_path / "two", "ddp", *arguments, bad_rank=1)
    assert first["skipped"] == second["skipped"] == 1
    assert first["scales"] == second["scales"] == (512.0, 1024.0)[:num_losses]
    assert is_equal(first["weights"], second["weights"])
    assert all(value.isfinite().all() for value in first["weights"].values())


def test_a_rank_with_other_arguments_is_refused(tmp_path):
    done = launch(tmp_path / "two", "ddp", "O2", bad_rank="odd")
    assert done.returncode != 0
    message = r"cast_model_type = 'bfloat16', rank 0 'float16'"
    assert message in done.stderr
    assert "growth_interval = 7, rank 0 2000" in done.stderr
    assert "Give every rank the same arguments" in done.stderr


def test_accumulating_several_losses_without_an_exchange_is_refused(tmp_path):
    done = launch(tmp_path / "two", "ddp", "O2", 2, 2, bad_rank=-2)
    assert done.returncode != 0
    assert "num_losses = 2 and a backward without an exchange of gradients" in done.stderr

"""AmpPrecision on two CPU processes."""

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


def run(folder, strategy, precision, accumulate=1, bad_rank=-1):
    folder.mkdir()
    arguments = [str(folder), strategy, precision, str(accumulate), str(bad_rank)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["rank0.pt"] if strategy == "auto" else ["rank0.pt", "rank1.pt"]
    return [torch.load(folder / name) for name in names]


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [("ddp", "O2"), ("ddp_spawn", "O2"), ("ddp_fork", "O2"), ("ddp", "O1"), ("ddp_spawn", "O1")],
)
def test_strategies_agree_with_one_process(tmp_path, strategy, precision):
    first, second = run(tmp_path / "two", strategy, precision, accumulate=2)
    assert is_equal(first["weights"], second["weights"])
    assert first["skipped"] == second["skipped"] == 0
    (whole,) = run(tmp_path / "one", "auto", precision, accumulate=2)
    for name, value in whole["weights"].items():
        if name.startswith("net"):
            torch.testing.assert_close(first["weights"][name], value, **HALF_TRAINING)
    saved = torch.load(tmp_path / "two" / "end.ckpt", weights_only=True)
    assert is_equal(saved["state_dict"], first["weights"])


@pytest.mark.parametrize("precision", ["O1", "O2", "O2-bf16", "O3-bf16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_overflow_on_one_rank_skips_on_both(tmp_path, precision, accumulate):
    """With accumulation the overflow happens while gradients are not exchanged yet."""
    first, second = run(tmp_path / "two", "ddp", precision, accumulate, bad_rank=1)
    assert first["skipped"] == second["skipped"] == 2
    assert first["scale"] == second["scale"] == 256.0
    assert is_equal(first["weights"], second["weights"])
    assert all(value.isfinite().all() for value in first["weights"].values())
    assert first["mean_loss"] == pytest.approx(second["mean_loss"])

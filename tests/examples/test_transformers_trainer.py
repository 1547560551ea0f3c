"""The example trains, saves and goes on where it was, each time in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
SAFETENSORS = pytest.importorskip("safetensors.torch")


def train(repo_root: Path, output: Path, *arguments: str) -> tuple[float, float]:
    """Run the script and return the first and the last loss that it tells."""
    script = repo_root / "examples" / "transformers_trainer" / "train.py"
    done = subprocess.run(
        [sys.executable, script, "--output", output, *arguments],
        env={
            "PYTHONPATH": str(repo_root),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(output / "home"),
        },
        cwd=output.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    first, last = re.search(r"^loss (\S+) -> (\S+), saved in", done.stdout, re.MULTILINE).groups()
    return float(first), float(last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "accumulate"),
    [("O0", "1"), ("O1-bf16", "1"), ("O2", "1"), ("O2-bf16", "1"), ("O2-bf16", "2")],
)
def test_loss_falls(repo_root: Path, tmp_path: Path, precision: str, accumulate: str):
    arguments = ("--precision", precision, "--max-steps", "20", "--accumulate", accumulate)
    first, last = train(repo_root, tmp_path / "out", *arguments)
    assert last < first - 1.0


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["O2", "O2-bf16"])
def test_resume_is_bit_equal(repo_root: Path, tmp_path: Path, precision: str):
    arguments = ("--precision", precision, "--save-steps", "10")
    _, expected = train(repo_root, tmp_path / "whole", *arguments, "--max-steps", "20")
    train(repo_root, tmp_path / "part", *arguments, "--max-steps", "10")
    checkpoint = tmp_path / "part" / "checkpoint-10"
    _, found = train(
        repo_root, tmp_path / "part", *arguments, "--max-steps", "20", "--resume", str(checkpoint)
    )
    assert found == expected
    weights, other = (load_weights(tmp_path / name / "checkpoint-20") for name in ("whole", "part"))
    assert {item.dtype for item in weights.values()} == {torch.float32}
    assert all(torch.equal(item, other[name]) for name, item in weights.items())
    assert any(not torch.equal(item, item.half().float()) for item in weights.values())


def load_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return SAFETENSORS.load_file(checkpoint / "model.safetensors")

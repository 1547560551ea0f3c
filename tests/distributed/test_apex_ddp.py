"""The Apex API under DDP on two CPU processes, accumulating without an exchange of gradients."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tolerances import HALF_TRAINING, SAME_MATHS
from support.training import is_equal
from torch import nn

SCRIPT = Path(__file__).parent / "apex_ddp_script.py"
BAD_STEP = 7

pytestmark = pytest.mark.slow


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(13, 17), nn.LayerNorm(17), nn.ReLU(), nn.Linear(17, 3))


def run(folder: Path, precision: str, bad: int) -> list[list[Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), precision, str(bad)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def train_fp32() -> dict[str, torch.Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for step, data in enumerate(torch.randn(20, 2, 3, 5, 13, generator=generator)):
        for inputs in data.flatten(0, 1):
            (nn.functional.mse_loss(model(inputs), inputs[:, :3]) / 6).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step != BAD_STEP:
            optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize(
    ("precision", "bad"), [("O0", 0), ("O1", 0), ("O2", 0), ("O2", 2), ("O2-bf16", 0), ("O3", 0)]
)
def test_ranks_stay_equal_and_train_as_one_process(tmp_path: Path, precision: str, bad: int):
    expected = train_fp32()
    tolerance = SAME_MATHS if precision == "O0" else HALF_TRAINING
    for first, second in zip(*run(tmp_path, precision, bad), strict=True):
        assert is_equal(first["state"], second["state"])
        scaler = {"loss_scale": 128.0, "unskipped": 20 - BAD_STEP - 1}
        assert first["amp"] == second["amp"] == {"loss_scaler0": scaler}
        for name, wanted in expected.items():
            torch.testing.assert_close(first["state"][name], wanted, **tolerance)

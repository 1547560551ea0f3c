"""The monitors in two processes: ranks agree, and nobody waits for the other for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("monitors_case.py")


@pytest.fixture(scope="module", params=["32-true", "O2-bf16"])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), request.param],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(
    "name",
    ["norms", "factors", "validations", "steps", "spikes", "moments", "losses", "stall"],
)
def test_ranks_agree(ranks, name):
    assert ranks[0][name] == ranks[1][name]


def test_spike_of_one_rank_stops_both_after_the_next_step(ranks):
    # 16 batches a rank and epoch; step 21 is the one with the spike.
    assert ranks[0]["spikes"] == [21]
    assert ranks[0]["steps"] == 23


def test_learning_rate_follows_both_ranks(ranks):
    assert ranks[0]["factors"] == {2.0}


def test_validation_counts_the_samples_of_both_ranks(ranks):
    # Batches of 14 over all ranks; the last one is Lightning's own, when it stops.
    assert ranks[0]["validations"] == [4, 8, 12, 16, 20, 23]


def test_loss_is_the_mean_over_ranks(ranks):
    own = torch.tensor([rank["own_losses"][:16] for rank in ranks]).mean(0)
    assert ranks[0]["losses"][:4] == pytest.approx(own[4:8].tolist(), rel=1e-3)


def test_noise_is_measured_between_the_ranks(ranks):
    weight, _, trace, square, *_ = ranks[0]["moments"]
    assert weight > 20
    assert trace > 0
    assert trace / square > 0

import pytest
import torch

from benchkit.state_report import format_state_report
from benchkit.state_tasks import STATE_TASKS
from benchkit.state_training import (
    FULL,
    NEAREST,
    STATE_FORMS,
    STOCHASTIC,
    _round_to_nearest,
    _share_moved,
    measure_state_training,
)
from lightning_mp.optim import FusedAdamW


@pytest.mark.parametrize("name", STATE_TASKS)
def test_tasks_hold_examples_out_and_repeat_their_batches(name):
    task = STATE_TASKS[name]()
    first, second = (task.draw(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(map(torch.equal, first, second))
    inputs, classes = task.held_out
    logits = task.make_model()(inputs[:2])
    assert logits.shape[:-1] == classes[:2].shape
    assert int(classes.max()) < logits.shape[-1]
    drawn = {tuple(row) for row in first[0].flatten(1).tolist()}
    assert drawn.isdisjoint({tuple(row) for row in inputs.flatten(1).tolist()})


def test_forms_differ_in_their_moments_alone(capsys):
    result = measure_state_training(task="digits", num_seeds=2, num_threads=1, is_smoke=True)
    assert result["num_steps"] == 30
    assert list(result["runs"]) == list(STATE_FORMS)
    full, nearest, stochastic = (result["runs"][form] for form in STATE_FORMS)
    assert [run["scale"] for run in full] == [1.0, 1.0]
    for start in range(2):
        losses = {runs[start]["loss"] for runs in (full, nearest, stochastic)}
        assert len(losses) == 3
        assert max(losses) - min(losses) < 0.1
    assert capsys.readouterr().err.count("digits, start ") == 6


def test_nearest_rounding_leaves_bfloat16_values():
    weight = torch.nn.Parameter(torch.ones(103))
    optimizer = FusedAdamW([weight])
    weight.grad = torch.linspace(-1.0, 1.0, 103)
    optimizer.step()
    exact = optimizer.state[weight]["exp_avg_sq"].clone()
    _round_to_nearest(optimizer)
    for name in ("exp_avg", "exp_avg_sq"):
        moment = optimizer.state[weight][name]
        assert moment.dtype == torch.float32
        assert torch.equal(moment, moment.bfloat16().float())
    assert torch.equal(optimizer.state[weight]["exp_avg_sq"], exact.bfloat16().float())


def test_what_moved_is_counted_where_there_was_a_gradient():
    before, after = torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([1.0, 3.0, 0.5, 0.0])
    assert _share_moved([before], [after]) == pytest.approx(2 / 3)


def test_spreads_and_pairs_are_those_of_starts():
    def run(loss, accuracy=0.5, moved=1.0, scale=1.0):
        shares = {"accuracy": accuracy, "moved": moved, "scale": scale}
        return {"training_loss": loss / 4, "loss": loss, **shares}

    runs = {
        FULL: [run(1.0), run(2.0)],
        NEAREST: [run(1.5, 0.25, 0.125, 3.0), run(2.25, 0.5, 0.25, 4.0)],
        STOCHASTIC: [run(1.25), run(1.75)],
    }
    results = {"digits": {"title": "Digits", "num_steps": 30, "runs": runs}}
    text = format_state_report([("Date", "today")], results)
    assert "- Date: today\n\n## digits\n\nDigits; 30 steps, 2 starts.\n" in text
    expected = "| bf16, nearest | 0.4688 (0.3750 to 0.5625) | 1.8750 (1.5000 to 2.2500) |"
    expected += " 0.3750 (0.2500 to 0.5000) |"
    expected += " 37.50 (25.00 to 50.00) | 18.8 (12.5 to 25.0) | 3.50 (3.00 to 4.00) |"
    assert expected in text.splitlines()
    assert "| 0.0000 (-0.2500 to 0.2500) |" in text

"""Training with the moments of Adam in FP32, and in bfloat16 with two kinds of rounding."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchkit.state_tasks import STATE_TASKS, StateTask
from lightning_mp.optim import FusedAdamW

__all__ = ["FULL", "NEAREST", "STATE_FORMS", "STOCHASTIC", "measure_state_training"]

FULL, NEAREST, STOCHASTIC = "FP32", "bf16, nearest", "bf16, stochastic"
STATE_FORMS = (FULL, NEAREST, STOCHASTIC)

_BETAS = (0.9, 0.999)
_MOMENTS = ("exp_avg", "exp_avg_sq")
# Steps over which losses are averaged and second moments watched; half of a run that is shorter.
_WATCHED_STEPS = 100
_NUM_SMOKE_STEPS = 30


def measure_state_training(
    *, task: str, num_seeds: int, num_threads: int, is_smoke: bool = False
) -> dict[str, Any]:
    """Train with every form of the moments from the same starts on the same batches.

    Args:
        task: Name of a task.
        num_seeds: Number of starts.
        num_threads: Number of threads of torch.
        is_smoke: Whether only a few steps are made.

    Returns:
        ``title`` and ``num_steps`` of the task, and ``runs``: for each form a list of what came out
        of each start: ``training_loss``, the mean over the last 100 steps; ``loss`` and
        ``accuracy`` on examples that were not trained on; ``moved``, the share of second moments
        that are not what they were 100 steps before the end; and ``scale``, the geometric mean of
        second moments over that of FP32 ones.
    """
    torch.set_num_threads(num_threads)
    what = STATE_TASKS[task]()
    num_steps = _NUM_SMOKE_STEPS if is_smoke else what.num_steps
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in STATE_FORMS}
    for seed in range(num_seeds):
        sizes = {}
        for form in STATE_FORMS:
            result, sizes[form] = _train(what, form, seed, num_steps)
            runs[form].append(result | {"scale": sizes[form] / sizes[FULL]})
            print(f"{task}, start {seed}: {form:<18} loss {result['loss']:.4f}", file=sys.stderr)
    return {"title": what.title, "num_steps": num_steps, "runs": runs}


def _train(task: StateTask, form: str, seed: int, num_steps: int) -> tuple[dict[str, float], float]:
    """Train once; return what came out, and the geometric mean of the second moments."""
    torch.manual_seed(seed)
    model = task.make_model()
    state_dtype = torch.bfloat16 if form == STOCHASTIC else torch.float32
    optimizer = FusedAdamW(model.parameters(), lr=task.lr, betas=_BETAS, state_dtype=state_dtype)
    schedule = CosineAnnealingLR(optimizer, num_steps)
    generator = torch.Generator().manual_seed(seed)
    num_watched = min(_WATCHED_STEPS, num_steps // 2)
    before: list[Tensor] = []
    losses = torch.zeros(num_steps)
    for step in range(num_steps):
        if step == num_steps - num_watched:
            before = [moment.clone() for moment in _second_moments(optimizer)]
        inputs, classes = task.draw(generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
        loss.backward()
        losses[step] = loss.detach()
        optimizer.step()
        schedule.step()
        if form == NEAREST:
            _round_to_nearest(optimizer)
    moments = _second_moments(optimizer)
    result = {
        "training_loss": losses[-num_watched:].mean().item(),
        **_evaluate(model, task.held_out),
        "moved": _share_moved(before, moments),
    }
    return result, _geometric_mean(moments)


def _second_moments(optimizer: Optimizer) -> list[Tensor]:
    return [entry["exp_avg_sq"] for entry in optimizer.state.values()]


def _round_to_nearest(optimizer: Optimizer) -> None:
    for entry in optimizer.state.values():
        for name in _MOMENTS:
            entry[name].copy_(entry[name].bfloat16())


@torch.no_grad()
def _evaluate(model: Any, held_out: tuple[Tensor, Tensor]) -> dict[str, float]:
    inputs, classes = held_out
    logits = model(inputs).flatten(0, -2)
    loss = F.cross_entropy(logits, classes.flatten())
    accuracy = (logits.argmax(-1) == classes.flatten()).float().mean()
    return {"loss": loss.item(), "accuracy": accuracy.item()}


def _share_moved(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    # Where a gradient was always 0, nothing has to move.
    used = [(one[other > 0], other[other > 0]) for one, other in zip(before, after, strict=True)]
    num_moved = sum(int((one != other).sum()) for one, other in used)
    return num_moved / sum(one.numel() for one, _ in used)


def _geometric_mean(moments: Sequence[Tensor]) -> float:
    values = torch.cat([moment[moment > 0].double().flatten() for moment in moments])
    return values.log().mean().exp().item()

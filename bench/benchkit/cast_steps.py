"""Whole training steps in a plain loop, under each way to cast functions."""

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchkit.casts import make_contexts
from benchkit.workload import make_workload

__all__ = ["measure_cast_steps"]

_NUM_WARMUP_STEPS = 2
_LEARNING_RATE = 1e-3


def measure_cast_steps(
    *,
    workload: str,
    half_dtype: str,
    num_rounds: int,
    num_steps: int,
    num_threads: int,
    is_smoke: bool = False,
) -> dict[str, list[float]]:
    """Time forward, backward and a step of SGD; each round takes the casts in another order.

    Args:
        workload: Name of a workload.
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        num_rounds: Number of rounds.
        num_steps: Number of timed steps of a round, after two for warming up.
        num_threads: Number of threads of torch.
        is_smoke: Whether the workload is tiny.

    Returns:
        For each way to cast and each round the median step, in processor seconds.
    """
    torch.set_num_threads(num_threads)
    what = make_workload(workload, is_smoke=is_smoke)
    batches = what.make_batches(_NUM_WARMUP_STEPS + num_steps)
    contexts = make_contexts(half_dtype)
    times: dict[str, list[float]] = {name: [] for name in contexts}
    for round_index in range(num_rounds):
        for name in random.Random(round_index).sample(list(contexts), len(contexts)):
            seconds = _time_steps(what.make_model, batches, contexts[name])
            times[name].append(seconds)
            print(
                f"{workload}: round {round_index + 1} of {num_rounds}: {name:<10} "
                f"{seconds * 1e3:9.2f} ms",
                file=sys.stderr,
            )
    return times


def _time_steps(
    make_model: Callable[[], nn.Module],
    batches: list[tuple[Tensor, Tensor]],
    make_context: Callable[[], AbstractContextManager[Any]],
) -> float:
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    gc.collect()
    steps = []
    for inputs, targets in batches:
        start = time.process_time()
        with make_context():
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(time.process_time() - start)
    return statistics.median(steps[_NUM_WARMUP_STEPS:])

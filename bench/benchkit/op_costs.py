"""What a way to cast functions adds to one call of a small operation."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchkit.casts import PEER, make_contexts

__all__ = ["make_operations", "measure_op_costs"]

_BY_HAND = "by hand"


class Operation(NamedTuple):
    """Hold a small operation.

    Attributes:
        name: What it is.
        run: Runs it.
        by_hand: Runs what O1 computes, casts included, where torch.autocast computes something
            else; ``None`` where autocast does the same, and is the peer itself.
    """

    name: str
    run: Callable[[], Tensor]
    by_hand: Callable[[], Tensor] | None = None


def make_operations(half_dtype: torch.dtype) -> list[Operation]:
    """Make the operations, on tensors of 4 x 8.

    Args:
        half_dtype: Dtype of the half operands.

    Returns:
        Operations on no list, on a list without a cast, and on a list with one.
    """
    torch.manual_seed(0)
    full, other = torch.rand(4, 8), torch.rand(4, 8)
    half, half_other = full.to(half_dtype), other.to(half_dtype)
    weight, vector = torch.rand(8, 8, requires_grad=True), torch.rand(8)
    return [
        Operation("relu, half (not listed)", lambda: torch.relu(half)),
        Operation("exp, float32", lambda: torch.exp(full)),
        Operation("layer_norm, float32", lambda: F.layer_norm(full, (8,), vector, vector)),
        Operation("add, half", lambda: half + half_other),
        Operation("mul, half", lambda: half * half_other),
        Operation("add, mixed", lambda: half + other),
        Operation("linear, float32 to half", lambda: F.linear(full, weight)),
        Operation("exp, half to float32", lambda: torch.exp(half), lambda: torch.exp(half.float())),
        Operation("sum, half to float32", lambda: half.sum(), lambda: half.float().sum()),
    ]


def measure_op_costs(
    *, half_dtype: str, num_rounds: int, num_calls: int, num_threads: int
) -> dict[str, dict[str, list[float]]]:
    """Time each operation under each way to cast functions, interleaved.

    Args:
        half_dtype: ``"bfloat16"`` or ``"float16"``.
        num_rounds: Number of rounds.
        num_calls: Number of calls of a round.
        num_threads: Number of threads of torch.

    Returns:
        For each operation and way to cast the processor seconds of a call, one per round.
        ``"by hand"`` is there for operations that torch.autocast computes otherwise.
    """
    torch.set_num_threads(num_threads)
    contexts = make_contexts(half_dtype)
    costs: dict[str, dict[str, list[float]]] = {}
    for operation in make_operations(getattr(torch, half_dtype)):
        forms = {name: (make_context, operation.run) for name, make_context in contexts.items()}
        if operation.by_hand is not None:
            forms[_BY_HAND] = (contexts["none"], operation.by_hand)
        costs[operation.name] = {name: [] for name in forms}
        for name, (make_context, run) in _shuffled(forms, num_rounds):
            with torch.no_grad(), make_context():
                costs[operation.name][name].append(_seconds_per_call(run, num_calls))
        peer = statistics.median(costs[operation.name].get(_BY_HAND, costs[operation.name][PEER]))
        print(f"{operation.name}: peer {peer * 1e6:.2f} us", file=sys.stderr)
    return costs


def _shuffled(forms: dict[str, Any], num_rounds: int) -> Iterator[tuple[str, Any]]:
    for round_index in range(num_rounds):
        yield from random.Random(round_index).sample(list(forms.items()), len(forms))


def _seconds_per_call(run: Callable[[], Tensor], num_calls: int) -> float:
    for _ in range(num_calls // 10 + 1):
        run()
    start = time.process_time()
    for _ in range(num_calls):
        run()
    return (time.process_time() - start) / num_calls

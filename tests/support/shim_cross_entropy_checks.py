"""Checks of the kernel shim for the cross-entropy of half logits."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from support.guarded_memory import GuardedMemory
from support.shim import BACKWARD, FORWARD, SHUFFLED, Shim, assert_same_bits
from support.shim_steps import BFLOAT, HALF

IGNORED = -100
# Below, at and above packs, lanes, blocks of terms, packs of all threads, and all blocks of terms.
NUM_CLASSES = (1, 7, 8, 64, 71, 1024, 1031, 2048, 2051, 32768, 33801)


def check_cross_entropy(shim: Shim) -> None:
    """Loss and gradient, with smoothing and weights, whatever rows follow each other in memory."""
    for num_classes, dtype in product(NUM_CLASSES, (BFLOAT, HALF)):
        for smoothing, is_weighted in product((0.0, 0.1), (False, True)):
            weight = _weights(num_classes) if is_weighted else None
            logits, target = _sample(num_classes, dtype)
            what = f"{num_classes} classes, {dtype}, smoothing {smoothing}, weights {is_weighted}"
            _compare(shim, logits, target, weight, smoothing, what)


def check_cross_entropy_memory(shim: Shim) -> None:
    """Memory that ends at a page which nobody may touch, and rows off the grid of 16 bytes."""
    for num_classes, place, shift in product((71, 2048, 2051), ("start", "end"), (0, 1)):
        memory = GuardedMemory()
        logits, target = _sample(num_classes, BFLOAT)
        logits = memory.copy(logits, place=place, shift=shift)
        weight = memory.copy(_weights(num_classes), place=place)
        _compare(shim, logits, target, weight, 0.1, f"{num_classes} classes at {place} + {shift}")
        assert memory.has_intact_zones(), "wrote to what is read"


def check_cross_entropy_orders(shim: Shim) -> None:
    """Any order of threads and blocks, any number of blocks, and sums that show their order."""
    for order, max_grid in ((FORWARD, 1), (BACKWARD, 2), (SHUFFLED, 3), (SHUFFLED, 0)):
        shim.run_as(order, max_grid=max_grid)
        logits, target = _sample(3001, BFLOAT)
        _compare(shim, logits, target, _weights(3001), 0.1, f"order {order}, {max_grid} blocks")


def check_cross_entropy_extremes(shim: Shim) -> None:
    """Logits and incoming gradients that are large or not finite."""
    for value, dtype in product(
        (6e4, -6e4, float("inf"), -float("inf"), float("nan")), (BFLOAT, HALF)
    ):
        logits, target = _sample(1031, dtype)
        logits[1:4, 5] = value
        target[2] = 5
        _compare(shim, logits, target, None, 0.0, f"a logit {value}")
        logits[3] = value
        _compare(shim, logits, target, None, 0.1, f"logits {value}")


def check_cross_entropy_layouts(shim: Shim) -> None:
    """Rows that are parts of longer ones, columns as rows, and one loss for all."""
    logits, target = _sample(2051, BFLOAT)
    _compare(shim, logits[:, :2040], target % 2040, None, 0.0, "parts of rows")
    # Rows of logits start at multiples of 16 bytes, those of the result do not.
    wide = _sample(2056, BFLOAT)[0]
    _compare(shim, wide[:, :2051], target, None, 0.0, "parts of aligned rows")
    _compare(shim, logits.t().contiguous().t(), target, None, 0.0, "columns")
    _compare(shim, logits, target, None, 0.0, "one gradient", torch.tensor(0.5).expand(len(target)))


def _sample(num_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_classes)
    logits = (torch.randn(6, num_classes, generator=generator) * 3).to(dtype)
    target = torch.randint(0, num_classes, (6,), generator=generator)
    target[0] = target[4] = IGNORED
    target[5] = num_classes - 1
    return logits, target


def _weights(num_classes: int) -> Tensor:
    return torch.rand(num_classes, generator=torch.Generator().manual_seed(num_classes))


def _compare(
    shim: Shim,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    smoothing: float,
    what: str,
    gradient: Tensor | None = None,
) -> None:
    found, expected = (
        _loss_and_gradient(ops, logits, target, weight, smoothing, gradient)
        for ops in (shim.cuda, shim.cpu)
    )
    for name, a, b in zip(("losses", "statistics", "gradient"), found, expected, strict=True):
        assert_same_bits(a, b, f"{name}: {what}")


def _loss_and_gradient(
    ops: Any,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    smoothing: float,
    gradient: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    losses, statistics = ops.cross_entropy_forward(logits, target, weight, IGNORED, smoothing)
    if gradient is None:
        gradient = torch.linspace(-40.0, 2.0**14, len(target))
    result = ops.cross_entropy_backward(
        gradient, logits, target, statistics, weight, IGNORED, smoothing
    )
    return losses, statistics, result

"""What tests of the kernels share."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.reference import REFERENCES
from lightning_mp.kernels.reference.split import join_master, split_master

# tests/packaging/test_native_build.py fails where the library could have been built and is not.
requires_kernels = pytest.mark.skipif(not load_kernels().is_loaded, reason=load_kernels().reason)

FLOATING = (torch.float32, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
# Below, at and above the sizes of vectors, groups, lines, blocks and chunks.
SHAPES = ((1,), (7,), (), (31,), (32,), (33, 5), (0,), (2, 0), (4099,), (103, 13), (70001,))

IMPLEMENTATIONS = {
    "reference": lambda name: REFERENCES[name],
    "active": lambda name: getattr(torch.ops.lightning_mp, name),
}

both_implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def operation(name: str, implementation: str = "active") -> Callable[..., Any]:
    """Get an operation as the dispatcher runs it, or its reference."""
    return IMPLEMENTATIONS[implementation](name)


def random_tensors(
    dtype: torch.dtype = torch.float32,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    *,
    seed: int = 0,
    factor: float = 1.0,
) -> list[Tensor]:
    """Make normally distributed tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * factor).to(dtype) for shape in shapes]


def bits(tensor: Tensor) -> Tensor:
    """View the elements as integers, so that NaN equals itself and 0 does not equal -0."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(kinds[tensor.element_size()])


def same_bits(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Tell whether two lists hold the same, bit for bit."""
    return len(first) == len(second) and all(
        torch.equal(bits(a), bits(b)) for a, b in zip(first, second, strict=True)
    )


def make_lists(
    gradient: torch.dtype,
    copy: torch.dtype | None,
    *,
    is_split: bool = False,
    num_states: int = 2,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> list[list[Tensor]]:
    """Make gradients, weights, copies and states of a step; the second state is not negative."""
    weights = random_tensors(shapes=shapes, seed=1)
    copies = [torch.empty(0) if copy is None else weight.to(copy) for weight in weights]
    if is_split:
        halves = [split_master(weight) for weight in weights]
        copies, weights = [half for half, _ in halves], [rest for _, rest in halves]
    states = [
        random_tensors(shapes=shapes, seed=2 + index, factor=0.1) for index in range(num_states)
    ]
    if num_states == 2:
        states[1] = [state.square() for state in states[1]]
    return [random_tensors(gradient, shapes, seed=9), weights, copies, *states]


def clone_lists(lists: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Copy lists of tensors, in their memory layouts."""
    return [[tensor.clone() for tensor in tensors] for tensors in lists]


def joined(weights: Sequence[Tensor], copies: Sequence[Tensor]) -> list[Tensor]:
    """FP32 weights, be they split or not."""
    return [
        join_master(copy, weight) if weight.dtype == torch.int16 else weight
        for weight, copy in zip(weights, copies, strict=True)
    ]


def adam_arguments(**changes: Any) -> dict[str, Any]:
    """Keyword arguments of ``adam_step_``."""
    return {
        "factor": None,
        "found_inf": None,
        "lr_tensor": None,
        "lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decoupled": True,
        "maximize": False,
        "clip_value": None,
        "zero_gradients": False,
        "adopt": False,
        "seed": 0,
    } | changes


def sgd_arguments(**changes: Any) -> dict[str, Any]:
    """Keyword arguments of ``sgd_step_``."""
    return {
        "factor": None,
        "found_inf": None,
        "lr_tensor": None,
        "lr": 1e-2,
        "momentum": 0.9,
        "dampening": 0.1,
        "weight_decay": 0.1,
        "nesterov": False,
        "maximize": False,
        "is_first": False,
        "clip_value": None,
        "zero_gradients": False,
        "adopt": False,
    } | changes

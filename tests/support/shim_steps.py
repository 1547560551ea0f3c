"""Inputs of steps for checks of the kernel shim."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lightning_mp.kernels.reference.split import split_master
from support.guarded_memory import GuardedMemory, Place
from support.shim import assert_same_bits

FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
# Ends of packs, of a block's stride, of a chunk; several chunks.
SIZES = (1, 7, 8, 0, 255, 2048, 16384, 3, 16385, 40003, 9, 12)
FORMS = ("plain", "bfloat16", "float16", "split")
COMBINATIONS = tuple(product((FLOAT, BFLOAT, HALF), FORMS))
ROLES = ("gradients", "weights", "copies", "first", "second")


@dataclass
class StepInputs:
    """The lists of a step."""

    gradients: list[Tensor]
    weights: list[Tensor]
    copies: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]

    def map(self, function: Callable[[str, Tensor], Tensor]) -> "StepInputs":
        """Return inputs of other tensors."""
        lists = {
            role: [function(role, item) for item in getattr(self, role)]
            for role in (*ROLES, "steps")
        }
        return StepInputs(**lists)

    def clone(self) -> "StepInputs":
        return self.map(lambda _, tensor: tensor.clone())

    def rounded(self) -> "StepInputs":
        """Return inputs with bfloat16 moments."""
        return self.map(
            lambda role, tensor: tensor.bfloat16() if role in ("first", "second") else tensor
        )

    def guarded(
        self, memory: GuardedMemory, place: Place = "start", shifted: str = ""
    ) -> "StepInputs":
        """Return copies in guarded memory, those of one role not at a multiple of 16 bytes."""
        return self.map(
            lambda role, tensor: memory.copy(tensor, place=place, shift=int(role == shifted))
        )

    def assert_same(self, other: "StepInputs", what: str) -> None:
        for role in (*ROLES, "steps"):
            pairs = zip(getattr(self, role), getattr(other, role), strict=True)
            for index, (found, expected) in enumerate(pairs):
                assert_same_bits(found, expected, f"{what}, {role}[{index}]")


def step_inputs(
    sizes: Sequence[int], combinations: Sequence[tuple[torch.dtype, str]] = COMBINATIONS
) -> StepInputs:
    """Make rows that go through the sizes and through combinations of gradient and weight."""
    generator = torch.Generator().manual_seed(17)
    inputs = StepInputs([], [], [], [], [], [])
    for index, numel in enumerate(sizes):
        dtype, form = combinations[index % len(combinations)]
        weight = torch.randn(numel, generator=generator)
        inputs.gradients.append(torch.randn(numel, generator=generator).to(dtype))
        inputs.first.append(0.1 * torch.randn(numel, generator=generator))
        inputs.second.append(0.01 * torch.randn(numel, generator=generator).abs())
        inputs.steps.append(torch.tensor([float(index % 5)]))
        if form == "split":
            half, weight = split_master(weight)
        else:
            half = weight.to(getattr(torch, form)) if form != "plain" else torch.empty(0)
        if form not in ("plain", "split") and numel > 2:
            # What somebody else wrote, for the steps that adopt it.
            half[numel // 2 :: 3] += 0.5
        inputs.weights.append(weight)
        inputs.copies.append(half)
    return inputs


def adam(ops: Any, inputs: StepInputs, **changes: Any) -> None:
    """Call adam_step_."""
    settings: dict[str, Any] = {
        "factor": torch.tensor([0.37]),
        "found_inf": torch.zeros(1),
        "lr_tensor": None,
        "lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decoupled": True,
        "maximize": False,
        "clip_value": None,
        "zero_gradients": False,
        "adopt": False,
        "seed": -(2**63) + 7,
    }
    lists = (inputs.gradients, inputs.weights, inputs.copies, inputs.first, inputs.second)
    ops.adam_step_(*lists, inputs.steps, **(settings | changes))


def sgd(ops: Any, inputs: StepInputs, **changes: Any) -> None:
    """Call sgd_step_."""
    settings: dict[str, Any] = {
        "factor": torch.tensor([0.37]),
        "found_inf": torch.zeros(1),
        "lr_tensor": None,
        "lr": 1e-2,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.1,
        "nesterov": False,
        "maximize": False,
        "is_first": False,
        "clip_value": None,
        "zero_gradients": False,
        "adopt": False,
    }
    settings |= changes
    buffers = inputs.first if settings["momentum"] else []
    ops.sgd_step_(inputs.gradients, inputs.weights, inputs.copies, buffers, **settings)

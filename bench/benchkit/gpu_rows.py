"""Rows of a step in all their kinds, on the host and on a device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_mp.kernels.reference import REFERENCES

__all__ = ["KINDS", "ROLES", "Rows", "make_rows", "place"]

KINDS = ("float32", "bfloat16 copy", "float16 copy", "split")
ROLES = ("gradients", "weights", "copies", "exp_avgs", "exp_avg_sqs")

# FP32 results of two orders of the same few operations; half ones may round the other way.
_FULL: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
_HALF: dict[str, Any] = {"rtol": 2.0**-7, "atol": 1e-3}


@dataclass(frozen=True)
class Rows:
    """Hold the lists of a step, each with one tensor per row.

    Attributes:
        gradients: Gradients.
        weights: FP32 weights or remainders.
        copies: Half weights, empty where there are none.
        exp_avgs: First moments, or momentum.
        exp_avg_sqs: Second moments.
        steps: Counters.
    """

    gradients: list[Tensor]
    weights: list[Tensor]
    copies: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]

    def adam_lists(self) -> tuple[list[Tensor], ...]:
        """Return the lists that a step of Adam takes, in order."""
        return (*self.sgd_lists(), self.exp_avg_sqs, self.steps)

    def sgd_lists(self) -> tuple[list[Tensor], ...]:
        """Return the lists that a step of SGD takes, in order."""
        return (self.gradients, self.weights, self.copies, self.exp_avgs)

    def on(self, device: torch.device, misaligned: str | None = None) -> "Rows":
        """Return copies on a device.

        Args:
            device: The device.
            misaligned: A role whose tensors begin one element after an aligned address.
        """
        placed = {
            role: [place(tensor, device, role == misaligned) for tensor in getattr(self, role)]
            for role in (*ROLES, "steps")
        }
        return Rows(**placed)

    def assert_close(self, expected: "Rows") -> None:
        """Compare with rows on the host, up to rounding.

        Args:
            expected: The rows.
        """
        mine, other = _joined(self.on(torch.device("cpu"))), _joined(expected)
        for role in (*ROLES, "steps"):
            pairs = zip(getattr(mine, role), getattr(other, role), strict=True)
            for index, (found, wanted) in enumerate(pairs):
                torch.testing.assert_close(
                    found,
                    wanted,
                    equal_nan=True,
                    msg=lambda text, role=role, index=index: f"{role}[{index}]: {text}",
                    **(_HALF if found.element_size() == 2 else _FULL),
                )

    def equals(self, other: "Rows") -> bool:
        """Tell whether all bits are the same.

        Args:
            other: Rows on any device.
        """
        return all(
            torch.equal(a.cpu(), b.cpu())
            for role in (*ROLES, "steps")
            for a, b in zip(getattr(self, role), getattr(other, role), strict=True)
        )


def make_rows(kind: str, gradient_dtype: torch.dtype, sizes: Sequence[int]) -> Rows:
    """Draw rows on the host.

    Args:
        kind: One of ``KINDS``: what a weight is.
        gradient_dtype: Dtype of the gradients.
        sizes: Number of elements of each row.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(scale: float) -> list[Tensor]:
        return [torch.randn(size, generator=generator) * scale for size in sizes]

    weights = draw(1.0)
    copies = [torch.empty(0) for _ in sizes]
    if kind == "split":
        copies = [weight.bfloat16() for weight in weights]
        remainders = [torch.zeros_like(weight, dtype=torch.int16) for weight in weights]
        REFERENCES["split_"](weights, copies, remainders)
        weights = remainders
    elif kind != "float32":
        copies = [weight.to(getattr(torch, kind.split()[0])) for weight in weights]
    return Rows(
        gradients=[gradient.to(gradient_dtype) for gradient in draw(0.1)],
        weights=weights,
        copies=copies,
        exp_avgs=draw(0.1),
        exp_avg_sqs=[item.square() + 1e-4 for item in draw(0.1)],
        steps=[torch.tensor(float(index % 5)) for index in range(len(sizes))],
    )


def place(tensor: Tensor, device: torch.device, is_misaligned: bool = False) -> Tensor:
    """Copy a tensor to a device.

    Args:
        tensor: The tensor.
        device: The device.
        is_misaligned: Whether the copy begins one element after an aligned address.
    """
    offset = int(is_misaligned)
    buffer = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=device)
    return buffer[offset:].view(tensor.shape).copy_(tensor)


def _joined(rows: Rows) -> Rows:
    """Return split weights as FP32 ones: one unit of a remainder may carry into the half."""
    if not rows.weights or rows.weights[0].dtype != torch.int16:
        return rows
    joined = [torch.zeros(half.shape) for half in rows.copies]
    REFERENCES["join_"](rows.copies, rows.weights, joined)
    return replace(rows, weights=joined)

"""What the steps of all optimizers share: from gradients to FP32 and from FP32 to weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_mp.kernels.reference.checks import (
    FLOATING,
    check_lists,
    check_one_dtype,
    check_range,
    check_scalars,
)
from lightning_mp.kernels.reference.split import join_master, split_master

__all__ = ["StepRows"]

# Rows are worked on a few megabytes at a time: their FP32 tensors live no longer.
_CHUNK_NUMEL = 2**21


@dataclass(frozen=True)
class StepRows:
    """Gradients, weights and half copies of a step, as its operation gets them.

    Attributes:
        name: The operation.
        gradients: float32, bfloat16 or float16.
        weights: FP32 weights, or int16 remainders of split ones.
        copies: Half copies; the upper halves of split weights; empty tensors for none.
        factor: Factor of gradients; ``None`` for 1.
        found_inf: Nonzero for a step that changes nothing; ``None`` for 0.
        clip_value: Bound of gradient elements after the factor; ``None`` for none.
        zero_gradients: Whether gradients become 0.
        adopt: Whether a half copy that is not the rounding of its weight replaces it.
    """

    name: str
    gradients: Sequence[Tensor]
    weights: Sequence[Tensor]
    copies: Sequence[Tensor]
    factor: Tensor | None
    found_inf: Tensor | None
    clip_value: float | None
    zero_gradients: bool
    adopt: bool

    def check(
        self,
        states: dict[str, Sequence[Tensor]],
        *,
        lr: float,
        lr_tensor: Tensor | None,
        state_dtypes: Sequence[torch.dtype] = (torch.float32,),
    ) -> None:
        """Refuse what does not fit together.

        Args:
            states: States by name, one per weight.
            lr: Learning rate.
            lr_tensor: Learning rate on the device.
            state_dtypes: What states may be, all of them the same.

        Raises:
            RuntimeError: If something does not fit; nothing was written.
        """
        stored = (torch.float32, torch.int16)
        lists = {
            "weights": (self.weights, stored),
            "gradients": (self.gradients, FLOATING),
            "copies": (self.copies, (torch.bfloat16, torch.float16)),
            **{key: (items, state_dtypes) for key, items in states.items()},
        }
        read_only = set() if self.zero_gradients else {"gradients"}
        check_lists(self.name, lists, written=lists.keys() - read_only, optional={"copies"})
        check_one_dtype(self.name, states)
        for index, (weight, copy) in enumerate(zip(self.weights, self.copies, strict=True)):
            if weight.dtype == torch.int16 and weight.numel() and copy.dtype != torch.bfloat16:
                raise RuntimeError(
                    f"lightning_mp::{self.name}: copies[{index}] is "
                    f"{str(copy.dtype).removeprefix('torch.')}; bfloat16, the upper half of "
                    f"weights[{index}], is needed"
                )
        scalars = {"factor": self.factor, "found_inf": self.found_inf, "lr_tensor": lr_tensor}
        check_scalars(
            self.name, self.weights, {key: (item, torch.float32) for key, item in scalars.items()}
        )
        check_range(self.name, "lr", lr)
        check_range(self.name, "clip_value", self.clip_value, is_open=True)

    def chunks(self) -> Iterator[list[int]]:
        """Yield the indices of rows with elements, a few megabytes at a time."""
        chunk, numel = [], 0
        for index, weight in enumerate(self.weights):
            if not weight.numel():
                continue
            if chunk and numel + weight.numel() > _CHUNK_NUMEL:
                yield chunk
                chunk, numel = [], 0
            chunk.append(index)
            numel += weight.numel()
        if chunk:
            yield chunk

    def is_skipped(self, index: int) -> Tensor:
        """Return a bool scalar on a row's device: whether the step changes nothing."""
        if self.found_inf is None:
            return torch.zeros((), dtype=torch.bool, device=self.weights[index].device)
        return (self.found_inf != 0).reshape(())

    def load_gradient(self, index: int) -> Tensor:
        """Return a row's gradient in FP32, contiguous, after factor and clipping by value."""
        gradient = self.gradients[index].to(torch.float32, copy=True).contiguous()
        if self.factor is not None:
            gradient.mul_(self.factor.reshape(()))
        if self.clip_value is not None:
            gradient.clamp_(-self.clip_value, self.clip_value)
        return gradient

    def load_weight(self, index: int) -> Tensor:
        """Return a row's weight in FP32, contiguous and apart from what is stored."""
        stored, copy = self.weights[index], self.copies[index]
        if stored.dtype == torch.int16:
            return join_master(copy.contiguous(), stored.contiguous())
        weight = stored.clone(memory_format=torch.contiguous_format)
        if self.adopt and copy.numel():
            # By bits: a NaN is not equal to itself.
            is_own = weight.to(copy.dtype).view(torch.int16) == copy.contiguous().view(torch.int16)
            weight = torch.where(is_own, weight, copy.float())
        return weight

    def store(self, index: int, weight: Tensor) -> None:
        """Write a row's weight and half copy and zero its gradient, unless the step is skipped.

        Args:
            index: The row.
            weight: New weight, FP32.
        """
        is_skipped = self.is_skipped(index)
        stored, copy = self.weights[index], self.copies[index]
        if stored.dtype == torch.int16:
            half, remainder = split_master(weight)
        else:
            half, remainder = weight.to(copy.dtype), weight
        stored.copy_(torch.where(is_skipped, stored, remainder))
        if copy.numel():
            copy.copy_(torch.where(is_skipped, copy, half))
        if self.zero_gradients:
            self.gradients[index].masked_fill_(~is_skipped, 0.0)

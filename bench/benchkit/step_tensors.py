"""Tensors that a step works on."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

__all__ = ["StepTensors"]

_SEED = 0
_LOSS_SCALE = 1024.0
_GRADIENT_SIZE = 1e-3
_WEIGHT_SIZE = 0.02
_NUM_STEPS_BEFORE = 100.0


class StepTensors:
    """Hold half weights and gradients, and what a way to step needs beside them.

    What not every way needs is made when it is first asked for, so that memory can be measured.

    Args:
        shapes: Shapes of the parameters.
        half_dtype: Dtype of weights and gradients.
        device: Where everything lives.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], half_dtype: torch.dtype, device: torch.device
    ) -> None:
        generator = torch.Generator(device).manual_seed(_SEED)

        def noise(shape: tuple[int, ...], size: float) -> Tensor:
            drawn = torch.randn(shape, generator=generator, device=device)
            return drawn.mul_(size).to(half_dtype)

        self.device = device
        self.halves = [noise(shape, _WEIGHT_SIZE) for shape in shapes]
        # Scaled as a loss scale leaves them: fp16 gradients are no denormal numbers then.
        self.gradients = [noise(shape, _GRADIENT_SIZE * _LOSS_SCALE) for shape in shapes]
        self.steps = [torch.tensor(_NUM_STEPS_BEFORE, device=device) for _ in shapes]
        self.inv_scale = torch.full((1,), 1.0 / _LOSS_SCALE, device=device)
        self.one = torch.ones(1, device=device)
        # Without dimensions, as GradScaler makes them: fused optimizers take nothing else.
        self.norm, self.factor, self.found_inf = torch.zeros(3, device=device).unbind()

    @property
    def numel(self) -> int:
        """Number of parameters."""
        return sum(half.numel() for half in self.halves)

    @cached_property
    def masters(self) -> list[nn.Parameter]:
        """FP32 masters."""
        return [nn.Parameter(half.float()) for half in self.halves]

    @cached_property
    def weights(self) -> list[Tensor]:
        """FP32 masters, as an operation takes them."""
        return [master.detach() for master in self.masters]

    @cached_property
    def exp_avgs(self) -> list[Tensor]:
        """First moments."""
        return self._filled(0.0, torch.float32)

    @cached_property
    def exp_avg_sqs(self) -> list[Tensor]:
        """Second moments."""
        return self._filled(_GRADIENT_SIZE**2, torch.float32)

    @cached_property
    def rounded_exp_avgs(self) -> list[Tensor]:
        """First moments in bfloat16."""
        return self._filled(0.0, torch.bfloat16)

    @cached_property
    def rounded_exp_avg_sqs(self) -> list[Tensor]:
        """Second moments in bfloat16."""
        return self._filled(_GRADIENT_SIZE**2, torch.bfloat16)

    @cached_property
    def remainders(self) -> list[Tensor]:
        """What FP32 masters have beyond the half weights."""
        return [torch.zeros_like(half, dtype=torch.int16) for half in self.halves]

    @cached_property
    def full_gradients(self) -> list[Tensor]:
        """FP32 gradients of the masters, which are their ``grad``."""
        gradients = [torch.zeros_like(weight) for weight in self.weights]
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        return gradients

    @cached_property
    def no_copies(self) -> list[Tensor]:
        """Say of every weight that no half copy follows it."""
        return [torch.empty(0, device=self.device)] * len(self.halves)

    def _filled(self, value: float, dtype: torch.dtype) -> list[Tensor]:
        return [torch.full_like(half, value, dtype=dtype) for half in self.halves]

"""FP32 masters in the parameter groups of an optimizer, and the half parameters behind them."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_clip import scale_gradients_
from lightning_mp.amp.opt_levels import HALF_DTYPES
from lightning_mp.kernels.reference import copy_to_float32

__all__ = ["MasterGroups"]


class MasterGroups:
    """Put FP32 masters in place of an optimizer's trainable half parameters.

    Args:
        optimizer: Its parameter groups and its state are changed in place.

    Attributes:
        halves: Half parameters of the model, per parameter group.
        masters: Their masters, in the same order.
        fp32: FP32 parameters of the model, per parameter group.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.halves: list[list[Tensor]] = []
        self.masters: list[list[Tensor]] = []
        self.fp32: list[list[Tensor]] = []
        for group in optimizer.param_groups:
            self._take(optimizer, group["params"])
        if optimizer.state:
            # Casts the state of earlier steps to the dtype of the masters.
            optimizer.load_state_dict(optimizer.state_dict())

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each half parameter with its master."""
        groups = zip(self.halves, self.masters, strict=True)
        return [pair for group in groups for pair in zip(*group, strict=True)]

    @property
    def model_params(self) -> list[Tensor]:
        """All trainable parameters of the model."""
        return [item for groups in (self.halves, self.fp32) for group in groups for item in group]

    @torch.no_grad()
    def push(self) -> None:
        """Write the masters, rounded, to the model."""
        for half, master in self.pairs:
            half.copy_(master)

    @torch.no_grad()
    def copy_gradients(self, factor: float) -> None:
        """Give each master the gradient of its half parameter times a factor, in FP32.

        Args:
            factor: The reciprocal of the loss scale.
        """
        given = []
        for half, master in self.pairs:
            master.grad = None if half.grad is None else _to_float32(half.grad, master)
            if master.grad is not None:
                given.append(dense_values(master))
        scale_gradients_(given, torch.tensor(factor))

    @torch.no_grad()
    def scale_fp32_gradients(self, factor: float) -> None:
        """Multiply the gradients of the FP32 parameters by a factor.

        Args:
            factor: The loss scale or its reciprocal.
        """
        parameters = [item for group in self.fp32 for item in group if item.grad is not None]
        scale_gradients_([dense_values(item) for item in parameters], torch.tensor(factor))

    def _take(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        self.halves.append([])
        self.masters.append([])
        self.fp32.append([])
        for index, parameter in enumerate(params):
            if not parameter.requires_grad:
                continue
            if parameter.dtype not in HALF_DTYPES:
                self.fp32[-1].append(parameter)
                continue
            master = params[index] = parameter.detach().float().requires_grad_()
            if parameter in optimizer.state:
                optimizer.state[master] = optimizer.state.pop(parameter)
            self.halves[-1].append(parameter)
            self.masters[-1].append(master)


def _to_float32(gradient: Tensor, master: Tensor) -> Tensor:
    if gradient.is_sparse:
        # In this order: coalescing adds.
        return gradient.to(torch.float32).coalesce()
    return copy_to_float32([gradient], [master])[0]

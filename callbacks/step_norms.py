"""Find the norm of the gradients that each optimizer step of a Trainer has used."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.gradient_check import dense_values
from lightning_mp.amp.gradient_stats import measure_gradients
from lightning_mp.lightning_api import MixedPrecision, Trainer
from lightning_mp.precision import AmpPrecision

__all__ = ["StepNorms", "optimizer_gradient_norm"]


@torch.no_grad()
def optimizer_gradient_norm(optimizer: Optimizer) -> Tensor | None:
    """Compute the L2 norm of the gradients of all parameters of an optimizer.

    Args:
        optimizer: Any torch optimizer.

    Returns:
        A float32 scalar on the device, accumulated in FP32; ``None`` without gradients.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> optimizer_gradient_norm(torch.optim.SGD([weight], lr=0.1))
        tensor(5.)
    """
    parameters = [item for group in optimizer.param_groups for item in group["params"]]
    gradients = [dense_values(item) for item in parameters if item.grad is not None]
    return measure_gradients(gradients).norm if gradients else None


class StepNorms:
    """Collect the gradient norms of a Trainer's optimizer steps, unscaled and not yet clipped.

    At an opt level the norm is the one that pass 1 of the step computes, known when the step is
    over; where gradients are unscaled for somebody to look at, and under other precisions, it is
    computed here. Nothing is read from the device.

    Args:
        trainer: The Trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        # Of optimizers that evaluate their closure several times, the first evaluation counts.
        self._last_key: tuple[int, int] | None = None
        self._pending: tuple[int, Optimizer, Tensor | None] | None = None
        self._known: list[tuple[int, Tensor]] = []

    def note(self, optimizer: Optimizer) -> None:
        """Note a step that is about to happen; call it in ``on_before_optimizer_step``.

        Args:
            optimizer: The optimizer, as the hook gets it.
        """
        # By identity: two optimizers never compare equal, but a wrapper may define equality.
        index = [item is optimizer for item in self._trainer.optimizers].index(True)
        key = (index, self._trainer.global_step)
        if key == self._last_key:
            return
        self._settle()
        self._last_key = key
        plugin = self._trainer.precision_plugin
        if isinstance(plugin, AmpPrecision):
            own = optimizer_gradient_norm(optimizer) if plugin.is_unscaled(optimizer) else None
            self._pending = (index, optimizer, own)
            return
        norm = optimizer_gradient_norm(optimizer)
        if norm is not None:
            self._known.append((index, self._unscaled(norm, optimizer)))

    def take(self) -> list[tuple[int, Tensor]]:
        """Return what is new; call it when no step is under way.

        Returns:
            Index of the optimizer and norm (float32 scalar on the device) of each step.
        """
        self._settle()
        known, self._known = self._known, []
        return known

    def _settle(self) -> None:
        plugin = self._trainer.precision_plugin
        if self._pending is None or not isinstance(plugin, AmpPrecision):
            return
        index, optimizer, own = self._pending
        self._pending = None
        norm = plugin.gradient_norm(optimizer)
        norm = own if norm is None else norm
        if norm is not None:
            self._known.append((index, norm))

    def _unscaled(self, norm: Tensor, optimizer: Optimizer) -> Tensor:
        plugin: Any = self._trainer.precision_plugin
        scaler: Any = plugin.scaler if isinstance(plugin, MixedPrecision) else None
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Such an optimizer unscales in its own step, after this hook.
            return norm / scaler.scale(torch.ones_like(norm))
        return norm

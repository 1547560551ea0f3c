"""An optimizer wrapper that owns FP32 masters of a model that is in half already."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lightning_mp.amp.closure_step import evaluates_closure
from lightning_mp.fp16_utils.master_groups import MasterGroups
from lightning_mp.fp16_utils.optimizer_checks import (
    check_optimizer,
    check_state,
    make_scaler,
    scaler_state,
)

__all__ = ["FP16_Optimizer"]


class _NonFiniteEvaluation(Exception):
    """No loss scale gave the closure finite gradients; the step is given up."""


class FP16_Optimizer:
    """Step an optimizer on FP32 copies of the half parameters that it was made for.

    Call :meth:`backward` in place of ``loss.backward()``. Steps whose gradients are not finite are
    skipped, at a fixed scale too, where Apex let them through. It runs on any device, and
    parameters may be float16 or bfloat16.

    Args:
        init_optimizer: A torch optimizer over half and FP32 parameters; it holds the masters from
            now on. Learning-rate schedulers take it, as the attribute ``optimizer``.
        static_loss_scale: Fixed scale; not used with ``dynamic_loss_scale``.
        dynamic_loss_scale: Whether the scale moves.
        dynamic_loss_args: Arguments of :class:`DynamicLossScaler`.
        verbose: Whether to print one line per skipped step.

    Attributes:
        optimizer: The wrapped optimizer.
        loss_scaler: What scales the loss.
        overflow: Whether the gradients at hand have an infinite or NaN element.

    Raises:
        TypeError: If ``init_optimizer`` is no torch optimizer, or holds a trainable parameter of
            another dtype. Nothing is changed then.
        ValueError: If an argument is out of its range.

    Example:
        >>> model = torch.nn.Linear(7, 3).bfloat16()
        >>> optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> optimizer.zero_grad()
        >>> optimizer.backward(model(torch.randn(5, 7).bfloat16()).float().pow(2).mean())
        >>> optimizer.step()
    """

    def __init__(
        self,
        init_optimizer: Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        check_optimizer(init_optimizer)
        self.loss_scaler = make_scaler(static_loss_scale, dynamic_loss_scale, dynamic_loss_args)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.optimizer: Any = init_optimizer
        self.overflow = False
        self.verbose = verbose
        self._groups = MasterGroups(init_optimizer)
        self._are_masters_due = False
        self._is_fp32_unscaled = False

    @property
    def loss_scale(self) -> float:
        """The current loss scale; it may be set."""
        return self.loss_scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.loss_scale = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's parameter groups, with the masters in them."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state, by master."""
        return self.optimizer.state

    @property
    def fp16_groups(self) -> list[list[Tensor]]:
        """The model's half parameters, per parameter group."""
        return self._groups.halves

    @property
    def fp32_from_fp16_groups(self) -> list[list[Tensor]]:
        """The masters of the half parameters, per parameter group."""
        return self._groups.masters

    @property
    def fp32_from_fp32_groups(self) -> list[list[Tensor]]:
        """The model's FP32 parameters, which need no masters, per parameter group."""
        return self._groups.fp32

    def zero_grad(
        self, set_grads_to_None: bool = False, *, set_to_none: bool | None = None
    ) -> None:
        """Clear the gradients of the model and of the masters.

        Args:
            set_grads_to_None: Whether to drop the gradients; else those there are become zeros.
            set_to_none: The same under torch's name; it counts if given.
        """
        drops = set_grads_to_None if set_to_none is None else set_to_none
        for parameter in [*self._groups.model_params, *self._masters()]:
            if drops:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)
        self._are_masters_due = self._is_fp32_unscaled = False

    def backward(
        self, loss: Tensor, update_master_grads: bool = True, retain_graph: bool = False
    ) -> None:
        """Run the backward of the scaled loss and give the masters their unscaled gradients.

        Gradients of several calls add up.

        Args:
            loss: Scalar loss of any floating dtype.
            update_master_grads: Whether to do the second half now. ``False`` saves time in all but
                the last of several calls; or call :meth:`update_master_grads` after them.
            retain_graph: As in ``Tensor.backward``.
        """
        if self._is_fp32_unscaled:
            self._groups.scale_fp32_gradients(self.loss_scale)
            self._is_fp32_unscaled = False
        self.loss_scaler.backward(loss, retain_graph=retain_graph)
        self._are_masters_due = True
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self) -> None:
        """Give the masters the unscaled gradients of the model, unless these are not finite."""
        self.overflow = self.loss_scaler.has_overflow(self._groups.model_params)
        self._are_masters_due = False
        if self.overflow:
            return
        factor = 1.0 / self.loss_scale
        self._groups.copy_gradients(factor)
        if not self._is_fp32_unscaled:
            self._groups.scale_fp32_gradients(factor)
            self._is_fp32_unscaled = True

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> Tensor | int:
        """Clip the unscaled FP32 gradients by their total norm.

        Args:
            max_norm: Largest norm, above 0.
            norm_type: Order of the norm.

        Returns:
            The norm before clipping, or -1 if the gradients are not finite.
        """
        if self.overflow:
            return -1
        return torch.nn.utils.clip_grad_norm_(self._masters(), max_norm, norm_type)

    def inspect_master_grad_data(self) -> list[list[Tensor | None]] | None:
        """Return the unscaled FP32 gradients, per parameter group, or ``None`` after an overflow.

        Returns:
            One list per group; a parameter without a gradient has ``None`` there.
        """
        if self.overflow:
            return None
        return [
            [None if item.grad is None else item.grad.detach() for item in group["params"]]
            for group in self.param_groups
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the masters and write them to the model, unless the gradients are not finite.

        Args:
            closure: Calls :meth:`zero_grad` and :meth:`backward` and returns the loss. It is
                called again at a lower scale if its gradients are not finite and the scale moves.

        Returns:
            What the wrapped optimizer returns; without a closure ``None`` for a skipped step.

        Raises:
            RuntimeError: If the masters do not have the gradients of the last backward.
        """
        if closure is not None:
            return self._step_with_closure(closure)
        if self.overflow:
            self._move_scale(overflow=True)
            return None
        self._check_gradients()
        self._move_scale(overflow=False)
        result = self.optimizer.step()
        self._groups.push()
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return everything to go on from, masters included; it loads with ``weights_only``."""
        return {
            "loss_scaler": self.loss_scaler.state_dict(),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": [
                [item.detach() for item in group] for group in self.fp32_from_fp16_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state and write its masters to the model.

        Whether the scale moves stays as this object was told.

        Args:
            state_dict: What :meth:`state_dict` returned, or Apex's, which holds a scaler object.

        Raises:
            ValueError: If the state is of another model; nothing is changed then.
        """
        check_state(state_dict, self.fp32_from_fp16_groups)
        saved_scaler = scaler_state(state_dict["loss_scaler"])
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        self.loss_scaler.load_state_dict(saved_scaler)
        self.overflow = bool(state_dict["overflow"])
        with torch.no_grad():
            for group, values in zip(
                self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"], strict=True
            ):
                for master, value in zip(group, values, strict=True):
                    master.copy_(value)
        self._groups.push()

    def _masters(self) -> list[Tensor]:
        return [item for group in self.param_groups for item in group["params"]]

    def _check_gradients(self) -> None:
        is_plain = any(
            half.grad is not None and master.grad is None for half, master in self._groups.pairs
        )
        if self._are_masters_due or is_plain:
            raise RuntimeError(
                "FP16_Optimizer.step() with model gradients that the masters do not have; "
                "optimizer.backward(loss) is needed in place of loss.backward(), and after "
                "backward(loss, update_master_grads=False) a call of update_master_grads()"
            )

    def _move_scale(self, *, overflow: bool) -> None:
        if not overflow:
            self.loss_scaler.update_scale(False)
            return
        old = self.loss_scale
        self.loss_scaler.update_scale(True)
        # torch's schedulers warn if the first step of the optimizer never ran.
        self.optimizer._opt_called = True
        if self.verbose:
            print(f"OVERFLOW: skipping step, loss scale {old} -> {self.loss_scale}")

    def _step_with_closure(self, closure: Callable[[], Any]) -> Any:
        results: list[Any] = []
        moves = evaluates_closure(self.optimizer)
        before = [item.detach().clone() for item in self._masters()] if moves else []

        def evaluate() -> Any:
            self._groups.push()
            while True:
                results.append(closure())
                if not self.overflow:
                    self._check_gradients()
                    return results[-1]
                old = self.loss_scale
                self._move_scale(overflow=True)
                if self.loss_scale == old:
                    raise _NonFiniteEvaluation

        try:
            result = self.optimizer.step(evaluate)
        except _NonFiniteEvaluation:
            result = results[-1]
            self._undo(before)
        else:
            self._move_scale(overflow=False)
        self._groups.push()
        return result

    @torch.no_grad()
    def _undo(self, before: list[Tensor]) -> None:
        for master, value in zip(self._masters(), before, strict=False):
            master.copy_(value)
        if isinstance(self.optimizer, LBFGS):
            # The curvature that led there is of no use.
            self.optimizer.state.clear()

"""Steps of optimizers that evaluate the closure themselves (LBFGS and its kind).

The closure runs inside ``optimizer.step``, perhaps many times, each time at weights that the
optimizer has just moved the masters to. The loss scale must not move in between, so this works with
a static scale only.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.optimizer_step import OptimizerStep
from lightning_mp.kernels.group_steps import group_step_of
from lightning_mp.kernels.reference import finite_flags

__all__ = ["ClosureStep", "evaluates_closure", "needs_closure"]


class _NonFiniteEvaluation(Exception):
    """An evaluation of the closure gave a non-finite gradient; the step is given up."""


def evaluates_closure(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer may call its closure by itself.

    Args:
        optimizer: Any torch optimizer.

    Returns:
        False for the optimizers of torch but LBFGS and of ``lightning_mp.optim``, which call the
        closure once, at the start; True for LBFGS and for classes of unknown make.
    """
    cls = type(optimizer)
    is_known = cls.__module__.startswith("torch.optim.") or group_step_of(optimizer) is not None
    return cls is LBFGS or not is_known


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer cannot step without a closure.

    Args:
        optimizer: Any torch optimizer.

    Returns:
        True if the closure is a required argument of its ``step``.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class ClosureStep:
    """Run ``optimizer.step(closure)`` on the masters.

    Args:
        step: The optimizer's step engine.
        masters: Masters of the model.
    """

    def __init__(self, step: OptimizerStep, masters: MasterWeights) -> None:
        self._step = step
        self._masters = masters

    def run(
        self, closure: Callable[[], Any], before_update: Callable[[], None], **kwargs: Any
    ) -> Any:
        """Step the optimizer; a step that starts or ends non-finite changes no weight.

        Args:
            closure: Computes the loss and the scaled gradients of the model's parameters.
            before_update: Hooks and clipping, run after every evaluation, with the masters in.
            **kwargs: Passed on to ``optimizer.step``.

        Returns:
            What ``optimizer.step`` returns, or the closure's result if the step was skipped.
        """
        with self._masters.opened(self._step.swap.parameters):
            return self._run(closure, before_update, **kwargs)

    def _run(
        self, closure: Callable[[], Any], before_update: Callable[[], None], **kwargs: Any
    ) -> Any:
        step, results, checks = self._step, [], []
        parameters = step.swap.parameters
        self._masters.adopt(parameters)
        before = None if step.evaluates_at_start else self._snapshot()
        is_at_start = False
        # Some (SAM) first move along the gradients of a backward before the step.
        entry = step.unscale()

        def evaluate() -> Any:
            nonlocal is_at_start
            is_at_start = not checks and (before is None or self._is_unmoved(before))
            with step.swap.masters_out():
                self._masters.push(parameters)
                results.append(closure())
                checks.append(step.unscale_anew())
            before_update()
            step.collect()
            if checks[-1].flag.read() and (len(checks) == 1 or not self._recovers):
                raise _NonFiniteEvaluation
            return results[-1]

        try:
            with step.swap.masters_in():
                result = step.optimizer.step(closure=evaluate, **kwargs)
        except _NonFiniteEvaluation:
            result, check = results[-1], checks[-1]
            self._undo(before, is_started=len(checks) > 1)
        else:
            check = self._undo_if_not_finite(checks or [entry], before)
        finally:
            self._masters.push(parameters)
        # One evaluation, before anything is moved: nothing will have to be undone next time.
        step.evaluates_at_start = is_at_start
        step.finish(check)
        return result

    @property
    def _recovers(self) -> bool:
        # A line search may meet a non-finite trial and go back; what counts is the end.
        groups = self._step.optimizer.param_groups
        return any(group.get("line_search_fn") is not None for group in groups)

    def _undo_if_not_finite(
        self, checks: list[GradientCheck], before: list[Tensor] | None
    ) -> GradientCheck:
        bad = next((check for check in checks if check.flag.read()), None)
        targets = [self._masters.of(item).detach() for item in self._step.swap.parameters]
        if bad is None or bool(finite_flags(targets).all()):
            return checks[0]
        self._undo(before, is_started=True)
        return bad

    def _snapshot(self) -> list[Tensor]:
        return [self._masters.of(item).detach().clone() for item in self._step.swap.parameters]

    def _is_unmoved(self, before: list[Tensor]) -> bool:
        masters = (self._masters.of(item) for item in self._step.swap.parameters)
        return all(torch.equal(one, other) for one, other in zip(masters, before, strict=True))

    @torch.no_grad()
    def _undo(self, before: list[Tensor] | None, *, is_started: bool) -> None:
        if before is None:
            return
        for parameter, value in zip(self._step.swap.parameters, before, strict=True):
            self._masters.of(parameter).copy_(value)
        if is_started and isinstance(self._step.optimizer, LBFGS):
            # The curvature that led there is not finite either: it starts afresh.
            self._step.optimizer.state.clear()

"""Steps of optimizers that evaluate the closure themselves (LBFGS and its kind).

The closure runs inside ``optimizer.step``, perhaps many times, each time at weights that the
optimizer has just moved the masters to. The loss scale must not move in between, so this works with
a static scale only.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.optimizer_step import OptimizerStep
from lightning_mp.kernels.reference import finite_flags

__all__ = ["ClosureStep", "evaluates_closure"]


class _NonFiniteStart(Exception):
    """The first evaluation of a step found a non-finite gradient; nothing was changed yet."""


def evaluates_closure(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer may call its closure by itself.

    Args:
        optimizer: Any torch optimizer.

    Returns:
        False for torch's own optimizers but LBFGS, which call the closure once, at the start; True
        for LBFGS and for classes of unknown make.
    """
    cls = type(optimizer)
    return cls is LBFGS or not cls.__module__.startswith("torch.optim.")


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
        step, results, checks = self._step, [], []
        parameters = step.swap.parameters
        self._masters.adopt(parameters)
        before = [self._masters.of(item).detach().clone() for item in parameters]

        def evaluate() -> Any:
            with step.swap.masters_out():
                self._masters.push(parameters)
                results.append(closure())
                checks.append(step.unscale_anew())
            if len(checks) == 1 and checks[0].flag.read():
                raise _NonFiniteStart
            before_update()
            step.collect()
            return results[-1]

        check: GradientCheck | None = None
        try:
            with step.swap.masters_in():
                result = step.optimizer.step(closure=evaluate, **kwargs)
        except _NonFiniteStart:
            result, check = results[-1], checks[0]
        else:
            check = self._undo_if_not_finite(checks, before)
        finally:
            with torch.no_grad():
                self._masters.push(parameters)
        if check is not None:
            step.finish(check)
        return result

    @torch.no_grad()
    def _undo_if_not_finite(
        self, checks: list[GradientCheck], before: list[torch.Tensor]
    ) -> GradientCheck | None:
        # A line search may meet an infinite trial and recover from it; what counts is the end.
        bad = next((check for check in checks[1:] if check.flag.read()), None)
        targets = [self._masters.of(item) for item in self._step.swap.parameters]
        if bad is None or bool(finite_flags(targets).all()):
            return checks[0] if checks else None
        torch._foreach_copy_(targets, before)
        # The curvature that led there is not finite either: the optimizer starts afresh.
        self._step.optimizer.state.clear()
        return bad

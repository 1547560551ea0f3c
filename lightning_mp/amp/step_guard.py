"""Refuse a step that goes round the engine.

``optimizer.step()`` on the bare optimizer would update the half weights with scaled gradients: with
a loss scale of 65536 the weights are ruined in one step, and nothing would tell.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["StepGuard"]


class StepGuard:
    """A step pre-hook that raises unless the engine is stepping.

    Args:
        is_stepping: Tells whether the step comes from the engine.
    """

    def __init__(self, is_stepping: Callable[[], bool]) -> None:
        self._is_stepping = is_stepping

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Check one step.

        Args:
            optimizer: The optimizer that is about to step.
            args: Positional arguments of ``step``.
            kwargs: Keyword arguments of ``step``.

        Raises:
            RuntimeError: The step was called directly; nothing was changed.
        """
        if not self._is_stepping():
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called directly, with gradients that are "
                "still scaled and weights that are half. Step what self.optimizers() returns "
                "in a LightningModule (not its .optimizer, nor use_pl_optimizer=False), or call "
                "engine.step(optimizer) in a plain loop."
            )

"""Surround each optimizer step of a Trainer with a context."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.optim import Optimizer

from lightning_mp.lightning_api import Trainer

__all__ = ["OptimizerStepHook"]


class OptimizerStepHook:
    """Wrap ``strategy.optimizer_step``, through which every step of a Trainer goes.

    A hook of the optimizer itself would keep the fused step of an opt level from being used.

    Args:
        trainer: The Trainer.
        surround: Returns the context of a step of an optimizer. The closure runs inside it.
    """

    def __init__(
        self, trainer: Trainer, surround: Callable[[Optimizer], AbstractContextManager[None]]
    ) -> None:
        self._strategy = trainer.strategy
        self._surround = surround
        self._attribute: Any = None

    def install(self) -> None:
        """Wrap the strategy's method."""
        self._attribute = vars(self._strategy).get("optimizer_step")
        step = self._strategy.optimizer_step

        def optimizer_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            with self._surround(optimizer):
                return step(optimizer, *args, **kwargs)

        setattr(self._strategy, "optimizer_step", optimizer_step)  # noqa: B010 (a method)

    def remove(self) -> None:
        """Give the strategy its method back."""
        if self._attribute is None:
            vars(self._strategy).pop("optimizer_step", None)
        else:
            setattr(self._strategy, "optimizer_step", self._attribute)  # noqa: B010 (a method)

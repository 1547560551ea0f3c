"""A callback that times whole steps and their optimizer part."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from benchkit.instant import Instant
from benchkit.module import BenchModule

__all__ = ["StepTimer"]


class StepTimer(Callback):
    """Time each step of a fit.

    A step lasts from the end of the last batch to the end of this one, so it has everything in it:
    fetching and casting the batch, the loop, forward, backward and optimizer. The optimizer part
    begins when the gradients are there: unscaling, clipping, update, casts. No hook is used that
    lets a callback see gradients, because ours take another path then.
    """

    def __init__(self) -> None:
        self.steps: list[Instant] = []
        self.optimizer_parts: list[Instant] = []
        self._start = self._backward_end = Instant.now()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = Instant.now()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._backward_end = Instant.now()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(pl_module, BenchModule):
            raise TypeError(
                f"module = {type(pl_module).__name__}; allowed: BenchModule, which notes when its "
                "optimizer ends; train that one"
            )
        self.steps.append(Instant.now().since(self._start))
        self.optimizer_parts.append(pl_module.optimizer_end.since(self._backward_end))
        self._start = Instant.now()

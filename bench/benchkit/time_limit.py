"""A callback that ends a fit that takes too long to be worth it."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

__all__ = ["TimeLimit"]


class TimeLimit(Callback):
    """Stop after the step in which a limit is passed, but not before some steps are done.

    Args:
        max_cpu_seconds: Limit on the processor time of the process, from the start of training.
        min_steps: Number of steps that run in any case.
    """

    def __init__(self, max_cpu_seconds: float, *, min_steps: int = 1) -> None:
        self.is_exceeded = False
        self._max_cpu_seconds = max_cpu_seconds
        self._min_steps = min_steps
        self._start = 0.0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = time.process_time()

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if time.process_time() - self._start > self._max_cpu_seconds:
            self.is_exceeded = True
            trainer.should_stop = batch_idx + 1 >= self._min_steps

"""The LightningModule that every column trains."""

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW
from typing_extensions import override

from benchkit.column import Column
from benchkit.instant import Instant
from benchkit.workload import Workload

__all__ = ["BenchModule"]

_SEED = 0
_LEARNING_RATE = 1e-3


class BenchModule(L.LightningModule):
    """Train a workload's model with AdamW, as a user would write it.

    Args:
        workload: What is trained.
        column: Which form of AdamW is used.
        keeps_accuracy: Whether the accuracy on each batch is noted; it costs time.
    """

    def __init__(self, workload: Workload, column: Column, *, keeps_accuracy: bool = False) -> None:
        super().__init__()
        torch.manual_seed(_SEED)
        self.network = workload.make_model()
        self.column = column
        self.keeps_accuracy = keeps_accuracy
        self.losses: list[Tensor] = []
        self.accuracies: list[Tensor] = []
        self.optimizer_end = Instant.now()

    @override
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        logits = self.network(inputs)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        self.losses.append(loss.detach())
        if self.keeps_accuracy:
            self.accuracies.append((logits.detach().argmax(-1) == targets).float().mean())
        return loss

    @override
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.optimizer_end = Instant.now()

    @override
    def configure_optimizers(self) -> AdamW:
        optimizer = AdamW(
            self.parameters(),
            lr=_LEARNING_RATE,
            eps=self.column.eps,
            fused=True if self.column.is_fused else None,
        )
        if self.column.bypasses_clip_check:
            # Lightning refuses to clip for an optimizer that unscales by itself, even where
            # nothing is scaled. Without the mark this peer runs, and is the fastest there is.
            optimizer._step_supports_amp_scaling = False
        return optimizer

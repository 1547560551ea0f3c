"""LightningModule that trains any image network as a classifier."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from lightning_mp.lightning_api import LightningModule, OptimizerLRSchedulerConfig
from lightning_mp.recipes.vision.schedule import warmup_cosine

__all__ = ["ImageClassifier"]

_Batch = tuple[Tensor, Tensor]


class ImageClassifier(LightningModule):
    """Train a network on labelled images with cross-entropy and AdamW.

    Logs ``train/loss`` every few steps, ``train/accuracy``, ``val/loss`` and ``val/accuracy`` once
    per epoch, and ``test/accuracy`` when tested.

    Args:
        network: Maps images ``(batch, channels, height, width)`` to logits ``(batch, classes)``.
        num_classes: Number of classes, at least 2.
        learning_rate: Highest learning rate, above 0.
        weight_decay: Decoupled weight decay of AdamW, 0 or more.
        warmup_steps: Steps over which the learning rate rises, 0 or more. A cosine lowers it
            from epoch to epoch after that; see :func:`warmup_cosine`.
        label_smoothing: Share of a target that is spread over all classes, from 0 to 1.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> import lightning as L
        >>> from lightning_mp.recipes.vision import ImageDataModule, SmallCNN
        >>> model = ImageClassifier(SmallCNN(width=16))
        >>> L.Trainer(max_epochs=20).fit(model, datamodule=ImageDataModule())  # doctest: +SKIP
    """

    def __init__(
        self,
        network: nn.Module,
        num_classes: int = 10,
        *,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-2,
        warmup_steps: int = 20,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if not learning_rate > 0:
            raise ValueError(f"learning_rate = {learning_rate}; allowed above 0; 2e-3 is usual")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay = {weight_decay}; allowed 0 or more; use 0 for none")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"label_smoothing = {label_smoothing}; allowed 0 to 1; use 0 for none, 0.1 is usual"
            )
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps = {warmup_steps}; allowed 0 or more; use 0 for none")
        self.save_hyperparameters(ignore=["network"])
        self.network = network
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warmup_steps = warmup_steps
        self.label_smoothing = label_smoothing
        self.train_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's logits.

        Args:
            images: Floating tensor of shape ``(batch, channels, height, width)``.

        Returns:
            Logits of shape ``(batch, classes)``.
        """
        return self.network(images)

    def training_step(self, batch: _Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch of images and labels."""
        images, labels = batch
        logits = self(images)
        loss = cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        self.train_accuracy(logits, labels)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels))
        self.log("train/accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: _Batch, batch_idx: int) -> None:
        """Log loss and accuracy of one batch of images and labels."""
        images, labels = batch
        logits = self(images)
        self.val_accuracy(logits, labels)
        self.log("val/loss", cross_entropy(logits, labels), batch_size=len(labels))
        self.log("val/accuracy", self.val_accuracy, prog_bar=True, batch_size=len(labels))

    def test_step(self, batch: _Batch, batch_idx: int) -> None:
        """Log the accuracy of one batch of images and labels."""
        images, labels = batch
        self.test_accuracy(self(images), labels)
        self.log("test/accuracy", self.test_accuracy, batch_size=len(labels))

    def predict_step(self, batch: _Batch, batch_idx: int) -> Tensor:
        """Return the classes of one batch of images, int64 of shape ``(batch,)``."""
        images, _ = batch
        return self(images).argmax(dim=1)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW with a learning rate that warms up by step and falls by epoch."""
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )

        def factor(step: int) -> float:
            return warmup_cosine(
                step,
                self.trainer.current_epoch,
                warmup_steps=self.warmup_steps,
                num_epochs=self.trainer.max_epochs or -1,
            )

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

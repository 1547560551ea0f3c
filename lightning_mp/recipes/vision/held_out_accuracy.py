"""Measure the accuracy on the test images when training has ended."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_mp.lightning_api import Callback, LightningModule, Trainer

__all__ = ["HeldOutAccuracy", "held_out_accuracy"]


class HeldOutAccuracy(Callback):
    """Classify all test images with the final weights at the end of ``fit``.

    ``fit`` alone never touches the test images. This callback makes one pass over the
    DataModule's test dataloader when the last training step is done and puts the result, a
    number from 0 to 1, under ``test/accuracy`` into ``trainer.callback_metrics`` and the loggers.
    The pass is outside every loop of the Trainer: no other metric, counter or weight changes.
    It needs a DataModule, and a model whose ``predict_step`` returns classes.

    Example:
        >>> import lightning as L
        >>> trainer = L.Trainer(max_epochs=20, callbacks=[HeldOutAccuracy()])
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a fit without a DataModule.

        Args:
            trainer: The Trainer.
            pl_module: The model.
            stage: What the Trainer does.

        Raises:
            ValueError: There is no DataModule to take the test images from.
        """
        if stage == "fit" and _datamodule(trainer) is None:
            raise ValueError(
                "datamodule = None; HeldOutAccuracy takes the test images from a DataModule; "
                "call trainer.fit(model, datamodule=...), or remove the callback"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure and publish the accuracy.

        Args:
            trainer: The Trainer.
            pl_module: The model.
        """
        accuracy = held_out_accuracy(trainer, pl_module, _datamodule(trainer).test_dataloader())
        trainer.callback_metrics["test/accuracy"] = torch.tensor(accuracy)
        for logger in trainer.loggers:
            logger.log_metrics({"test/accuracy": accuracy}, step=trainer.global_step)


@torch.no_grad()
def held_out_accuracy(
    trainer: Trainer, pl_module: LightningModule, batches: Iterable[tuple[Tensor, Tensor]]
) -> float:
    """Return the share of images that ``predict_step`` classifies rightly.

    Args:
        trainer: The Trainer, for its device and precision.
        pl_module: The model; its modules are in evaluation mode meanwhile.
        batches: Pairs of images and int64 labels, at least one pair.

    Returns:
        Accuracy from 0 to 1.
    """
    training_modules = [module for module in pl_module.modules() if module.training]
    pl_module.eval()
    num_right = num_seen = 0
    try:
        for batch_idx, cpu_batch in enumerate(batches):
            batch = trainer.strategy.batch_to_device(
                trainer.precision_plugin.convert_input(cpu_batch)
            )
            with trainer.precision_plugin.predict_step_context():
                classes = pl_module.predict_step(batch, batch_idx)
            num_right += int((classes == batch[1]).sum())
            num_seen += len(classes)
    finally:
        for module in training_modules:
            module.training = True
    return num_right / num_seen


def _datamodule(trainer: Trainer) -> Any:
    # Lightning sets the attribute when a DataModule is given and declares it nowhere.
    return getattr(trainer, "datamodule", None)

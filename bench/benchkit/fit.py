"""One fit of the stock Trainer, the same for all columns but for their precision."""

import gc
from collections.abc import Sequence

import lightning as L
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import DataLoader

import lightning_mp
from benchkit.module import BenchModule

__all__ = ["fit"]

_MAX_NORM = 1.0


def fit(
    module: BenchModule,
    batches: list[tuple[Tensor, Tensor]],
    callbacks: Sequence[Callback],
    *,
    device: str = "cpu",
) -> L.Trainer:
    """Train a module, one step per batch, gradients clipped to norm 1.

    Args:
        module: The module; its column says in which precision.
        batches: Batches, in order.
        callbacks: Callbacks that measure.
        device: ``"cpu"`` or ``"cuda"``, one GPU.

    Returns:
        The Trainer after the fit.
    """
    lightning_mp.install()
    trainer = L.Trainer(
        accelerator=device,
        devices=1,
        precision=module.column.precision,  # pyright: ignore[reportArgumentType]
        max_epochs=1,
        gradient_clip_val=_MAX_NORM,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    # What the fits before left is not to be collected inside a timed step.
    gc.collect()
    # A list is a dataset: it has a length and items.
    trainer.fit(module, DataLoader(batches, batch_size=None))  # pyright: ignore[reportArgumentType]
    return trainer

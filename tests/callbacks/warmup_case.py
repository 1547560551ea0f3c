"""A small fit that records which samples every step saw; a script, too, for other processes."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from lightning_mp.callbacks import BatchSizeWarmup

NUM_SAMPLES = 103
# 103 samples, 4 to 20 over 150 samples: epochs of 17, 7 and 6 batches.
EPOCH_SIZES = [
    [4] * 10 + [8] * 5 + [12, 11],
    [12, 16, 16, 16, 20, 20, 3],
    [20, 20, 20, 20, 20, 3],
]
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class IndexedData(Dataset):
    """Samples that carry their index."""

    def __init__(self, num_samples=NUM_SAMPLES):
        self.x = torch.randn(num_samples, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].sum(), index


class Net(LightningModule):
    """Records the indices of each batch, by epoch, and the steps of the optimizer."""

    def __init__(self, scheduler=None, planned=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer: Any = torch.nn.Linear(5, 1)
        self.epochs = {}
        self.num_steps = 0
        self.scheduler = scheduler
        self.planned = planned

    def training_step(self, batch, batch_idx):
        self.epochs.setdefault(self.current_epoch, []).append(batch[2].tolist())
        loss = (self.layer(batch[0]).squeeze(-1) - batch[1]).pow(2).mean()
        self.log("loss", loss, on_epoch=True, batch_size=len(batch[2]))
        return loss

    def optimizer_step(self, *args, **kwargs):
        self.num_steps += 1
        return super().optimizer_step(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        if self.planned:
            trainer: Any = self.trainer
            self.planned = trainer.callbacks[0].planned_steps(trainer)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        if self.scheduler is None:
            return optimizer
        return [optimizer], [{"scheduler": self.scheduler(self, optimizer), "interval": "step"}]

    @property
    def batches(self):
        return list(chain.from_iterable(self.epochs.values()))

    @property
    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.parameters()])


class ValidatedNet(Net):
    """Has a validation step, too."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).mean())


def sizes(model):
    return [[len(batch) for batch in epoch] for epoch in model.epochs.values()]


class Recorder(Callback):
    """Records totals where a progress bar reads them, in hooks of a callback placed first."""

    def __init__(self):
        self.totals = []
        self.metrics = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.totals.append(trainer.num_training_batches)

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        self.metrics.append(dict(trainer.callback_metrics))


class SaveAt(Callback):
    """Writes a checkpoint at every call of one hook, before any other callback's turn."""

    def __init__(self, folder, hook, name="{}.ckpt"):
        self.path = str(folder / name)
        self.num_trained = []
        setattr(self, hook, self.save)

    def save(self, trainer, pl_module, *args):
        if not trainer.sanity_checking:
            self.num_trained.append(len(pl_module.batches))
            trainer.save_checkpoint(self.path.format(len(self.num_trained)))


def make_warmup(start=4, end=20, num_samples=150, increment=4, **kwargs):
    return BatchSizeWarmup(start, end, num_samples, increment=increment, **kwargs)


def make_loader(num_samples=NUM_SAMPLES, *, shuffle=True, workers=0, **kwargs):
    return DataLoader(
        IndexedData(num_samples), batch_size=3, shuffle=shuffle, num_workers=workers, **kwargs
    )


def make_trainer(folder, callbacks, **kwargs):
    return Trainer(**{**QUIET, "default_root_dir": folder, "callbacks": callbacks, **kwargs})


def main(folder, options):
    """Fit as told and write what each rank saw to ``<rank>.json``."""
    folder = Path(folder)
    stop = options.pop("stop", None)
    resume = options.pop("resume", None)
    workers = options.pop("workers", 0)
    callbacks = [make_warmup(**options.pop("warmup", {})), Report(folder)]
    if stop is not None:
        callbacks.append(SaveAt(folder, "on_train_batch_end"))
        options = {**options, "max_steps": stop}
    trainer = make_trainer(folder, callbacks, **options)
    trainer.fit(Net(), make_loader(workers=workers), ckpt_path=resume)


class Report(Callback):
    """Writes what its rank saw: a spawned process shares no memory with the test."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, pl_module: Any):
        seen = {
            "epochs": list(pl_module.epochs.values()),
            "weights": pl_module.weights.tolist(),
            "steps": trainer.global_step,
        }
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

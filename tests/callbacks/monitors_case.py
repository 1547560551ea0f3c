"""Fit in two processes with every monitor: folder and precision; writes what each rank saw."""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.training import ValidatedModule, make_loader, make_plugin, make_trainer  # noqa: E402 - after the path

from lightning_mp.callbacks import (  # noqa: E402
    DataStallMonitor,
    GradientNoiseScaleMonitor,
    GradientNormMonitor,
    LearningRateScaling,
    LossCurveMonitor,
    SampleIntervalValidation,
)


class Spiking(ValidatedModule):
    """The gradient of one rank is a thousand times as large in one batch of the second epoch."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        is_spike = self.current_epoch == 1 and batch_idx == 5 and self.global_rank == 1
        return loss * 1000 if is_spike else loss


class Record(Callback):
    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"norms": [], "validations": [], "factors": set()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        metrics = trainer.callback_metrics
        if (
            trainer.global_step,
            "norm",
        ) not in self.seen and "lightning_mp/gradient_norm/l2" in metrics:
            self.seen["norms"].append(float(metrics["lightning_mp/gradient_norm/l2"]))
        if "lightning_mp/learning_rate/factor" in metrics:
            self.seen["factors"].add(float(metrics["lightning_mp/learning_rate/factor"]))

    def on_validation_start(self, trainer, pl_module):
        self.seen["validations"].append(trainer.fit_loop.total_batch_idx + 1)


def main() -> None:
    folder, precision = Path(sys.argv[1]), sys.argv[2]
    record, noise = Record(), GradientNoiseScaleMonitor()
    norms = GradientNormMonitor(on_spike="stop")
    curve = LossCurveMonitor(window_steps=16, every_n_steps=4)
    chosen = make_plugin(precision) if precision.startswith("O") else precision
    trainer = make_trainer(
        folder,
        chosen,
        devices=2,
        strategy="ddp",
        max_epochs=4,
        callbacks=[
            noise,
            norms,
            curve,
            DataStallMonitor(every_n_steps=4, max_wait_fraction=1.0),
            LearningRateScaling(7),
            SampleIntervalValidation(56),
            record,
        ],
    )
    module = Spiking("SGD", lr=1e-3)
    trainer.fit(module, make_loader(num_samples=224), make_loader(num_samples=14))
    record.seen |= {
        "steps": trainer.global_step,
        "spikes": [spike.step for spike in norms.spikes.get(0, [])],
        "moments": noise.noise.state_dict()["moments"],
        "losses": curve.state_dict()["losses"],
        "stall": float(trainer.callback_metrics["lightning_mp/data_stall/wait_seconds"]),
        "own_losses": module.losses,
    }
    torch.save(record.seen, folder / f"rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()

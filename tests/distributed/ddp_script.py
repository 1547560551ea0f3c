"""Fit in two processes: folder, strategy, precision, accumulation, rank whose loss overflows."""

import sys
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.training import SmallModule, make_loader, make_plugin, make_trainer  # noqa: E402 - after the path
from torchmetrics import MeanMetric  # noqa: E402


class Counted(SmallModule):
    """Overflows on one rank in batch 2 and keeps a metric, whose state must stay FP32."""

    def __init__(self, bad_rank: int) -> None:
        super().__init__("SGD", lr=0.05)
        self.bad_rank = bad_rank
        self.mean_loss = MeanMetric()

    def training_step(self, batch, batch_idx):
        self.bad_batches = (2,) if self.global_rank == self.bad_rank else ()
        loss = super().training_step(batch, batch_idx)
        self.mean_loss(loss.detach().nan_to_num(posinf=0.0))
        self.log("mean_loss", self.mean_loss, on_step=False, on_epoch=True)
        return loss


class Record(Callback):
    """Writes what this rank ends with, masters included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        plugin = trainer.precision_plugin
        state = {"weights": {k: v.clone() for k, v in pl_module.state_dict().items()}}
        if hasattr(plugin, "skipped_steps"):
            state |= {"skipped": plugin.skipped_steps, "scale": plugin.loss_scale}
        state["mean_loss"] = float(trainer.callback_metrics["mean_loss"])
        torch.save(state, self.folder / f"rank{trainer.global_rank}.pt")


def main() -> None:
    folder, strategy, precision = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    accumulate, bad_rank = int(sys.argv[4]), int(sys.argv[5])
    chosen = precision
    if precision.startswith("O"):
        chosen = make_plugin(precision, loss_scale="dynamic", init_scale=1024.0)
    trainer = make_trainer(
        folder,
        chosen,
        devices=1 if strategy == "auto" else 2,
        strategy=strategy,
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        callbacks=[Record(folder)],
    )
    batch_size = 14 if strategy == "auto" else 7
    module = Counted(bad_rank)
    trainer.fit(module, make_loader(num_samples=112, batch_size=batch_size))
    trainer.save_checkpoint(folder / "end.ckpt")
    if trainer.is_global_zero:
        assert {value.dtype for value in module.parameters()} == {torch.float32}


if __name__ == "__main__":
    main()

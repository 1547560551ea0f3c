"""Train in a process of its own: folder, result file, number of epochs, checkpoint or ``none``."""

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.training import SmallModule, make_loader, make_plugin, make_trainer, weights  # noqa: E402 - after the path


def main(folder: Path, result: str, num_epochs: int, checkpoint: str) -> None:
    module = SmallModule()
    plugin = make_plugin("O2", init_scale=2.0**20, growth_interval=5)
    trainer = make_trainer(folder, plugin, max_epochs=num_epochs, gradient_clip_val=0.3)
    path = None if checkpoint == "none" else folder / checkpoint
    trainer.fit(module, make_loader(), ckpt_path=path)
    trainer.save_checkpoint(folder / f"{result}.ckpt")
    state = {"losses": module.losses, "weights": weights(module), "plugin": plugin.state_dict()}
    torch.save(state, folder / result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])

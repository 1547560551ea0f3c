"""Fabric in two processes: folder, strategy, precision, accumulation, losses, rank that is bad.

A bad rank overflows in batch 2; with ``odd`` in its place rank 1 is given another argument, with -2
gradients of several losses are accumulated without an exchange.
"""

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.engine import make_batches  # noqa: E402 - after the path
from support.fabric import make_fabric, make_fabric_plugin  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

NUM_BATCHES = 8
BLOCK_ANYWAY = -2


def train(fabric, folder, accumulate, num_losses, bad_rank):
    plugin = fabric.strategy.precision
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(13, 17), nn.LayerNorm(17), nn.Tanh(), nn.Linear(17, 3))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=5e-2, momentum=0.9))
    batches = make_batches(NUM_BATCHES, batch_size=14 // fabric.world_size * fabric.world_size)
    for index, (inputs, targets) in enumerate(batches):
        part = slice(fabric.global_rank, None, fabric.world_size)
        is_stepping = (index + 1) % accumulate == 0
        is_bad = index == 2 and fabric.global_rank == bad_rank
        for loss_id in range(num_losses):
            is_blocked = not is_stepping and (num_losses == 1 or bad_rank == BLOCK_ANYWAY)
            with fabric.no_backward_sync(model, enabled=is_blocked), plugin.loss(loss_id):
                loss = F.mse_loss(model(inputs[part]), targets[part]) / accumulate / num_losses
                fabric.backward(loss * float("inf") if is_bad and loss_id == 0 else loss)
        if is_stepping:
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
    state = {"model": model, "optimizer": optimizer, "precision": plugin}
    fabric.save(folder / "end.ckpt", state)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    result = {"weights": values, "skipped": plugin.skipped_steps, "scales": plugin.loss_scales}
    if fabric.global_rank == 1:
        # As if this rank alone had come from another start.
        plugin.engine.scaler.load_state_dict({"loss_scale": 4.0})
    fabric.load(folder / "end.ckpt", state)
    result["resumed"] = plugin.loss_scales
    torch.save(result, folder / f"rank{fabric.global_rank}.pt")


def main() -> None:
    folder, strategy, precision = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    accumulate, num_losses = int(sys.argv[4]), int(sys.argv[5])
    init_scale = 1024.0
    plugin = make_fabric_plugin(
        precision, loss_scale="dynamic", init_scale=init_scale, num_losses=num_losses
    )
    devices = 1 if strategy == "auto" else 2
    fabric = make_fabric(plugin, strategy=strategy, devices=devices)
    arguments = (folder, accumulate, num_losses, -1 if sys.argv[6] == "odd" else int(sys.argv[6]))
    if strategy in ("auto", "ddp"):
        fabric.launch()
        if sys.argv[6] == "odd" and fabric.global_rank == 1:
            plugin.__init__(precision.partition("-")[0], "bf16", growth_interval=7)
        train(fabric, *arguments)
    else:
        fabric.launch(train, *arguments)


if __name__ == "__main__":
    main()

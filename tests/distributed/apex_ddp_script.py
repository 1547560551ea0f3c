"""Trains through the Apex API under DDP on two gloo processes, with micro-batches in no_sync.

Usage: apex_ddp_script.py FOLDER LEVEL BAD_MICRO_BATCH; the latter is infinite on rank 1 in step 7.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path[:0] = [str(Path(__file__).parents[2])]

from lightning_mp import amp  # noqa: E402 - after the path
from lightning_mp.amp import parse_precision  # noqa: E402

NUM_STEPS, NUM_MICRO_BATCHES, BAD_STEP = 20, 3, 7
CASES = [(is_view, is_delayed) for is_view in (False, True) for is_delayed in (False, True)]


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(13, 17), nn.LayerNorm(17), nn.ReLU(), nn.Linear(17, 3))


def make_data() -> Tensor:
    shape = (NUM_STEPS, 2, NUM_MICRO_BATCHES, 5, 13)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(inputs).float(), inputs[:, :3]) / NUM_MICRO_BATCHES


def train(rank: int, precision: str, bad: int, *, is_view: bool, is_delayed: bool) -> Any:
    level, half = parse_precision(precision)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    arguments: dict[str, Any] = {"max_loss_scale": 256.0, "loss_scale": "dynamic", "verbosity": 0}
    amp.initialize(model, optimizer, opt_level=level, half_dtype=half, **arguments)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=is_view)
    for step, data in enumerate(make_data()):
        for index, inputs in enumerate(data[rank]):
            is_last = index == NUM_MICRO_BATCHES - 1
            with nullcontext() if is_last else wrapped.no_sync():
                loss = loss_of(wrapped, inputs)
                if (step, rank, index) == (BAD_STEP, 1, bad):
                    loss = loss * torch.inf
                delays = is_delayed and not is_last
                with amp.scale_loss(loss, optimizer, delay_unscale=delays) as scaled_loss:
                    scaled_loss.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = {name: item.clone() for name, item in model.state_dict().items()}
    return {"state": state, "amp": amp.state_dict()}


def run(rank: int, folder: str, precision: str, bad: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    found = [
        train(rank, precision, bad, is_view=is_view, is_delayed=is_delayed)
        for is_view, is_delayed in CASES
    ]
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (sys.argv[1], sys.argv[2], int(sys.argv[3])), nprocs=2)

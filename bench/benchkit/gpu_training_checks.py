"""Checks of whole trainings on a device: the Trainer in every precision, and the Apex API."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from benchkit.column import parse_column
from benchkit.fit import fit
from benchkit.gpu_check import Check
from benchkit.module import BenchModule
from benchkit.workload import make_workload
from lightning_mp import amp
from lightning_mp.optim import FusedAdamW

__all__ = ["TRAINING_CHECKS"]

_PRECISIONS = ("O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3-bf16")
_QUICK_PRECISIONS = ("O1-bf16", "O2-bf16")
_NUM_STEPS = 30
# The mean loss of the last steps, against that of FP32 training.
_LOSS_TOLERANCE = 0.05


def _trainer(device: torch.device, is_quick: bool) -> str:
    workload = make_workload("transformer", is_smoke=True)
    batches = workload.make_batches(_NUM_STEPS)

    def train(precision: str) -> float:
        module = BenchModule(workload, parse_column(precision))
        fit(module, batches, [], device=device.type)
        return torch.stack(module.losses[-5:]).mean().item()

    expected = train("32-true")
    found = []
    for precision in _QUICK_PRECISIONS if is_quick else _PRECISIONS:
        loss = train(precision)
        assert abs(loss - expected) < _LOSS_TOLERANCE * expected, (
            f"loss = {loss:.4f} with precision={precision}; {expected:.4f} in FP32"
        )
        found.append(f"{precision} {loss:.3f}")
    return f"loss in FP32 {expected:.3f}; {', '.join(found)}"


def _apex_api(device: torch.device, is_quick: bool) -> str:
    losses = {}
    for home in (torch.device("cpu"), device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(33, 103), nn.ReLU(), nn.Linear(103, 1)).to(home)
        optimizer = FusedAdamW(model.parameters(), lr=1e-2)
        model, optimizer = amp.initialize(
            model, optimizer, opt_level="O2", verbosity=0, half_dtype=torch.bfloat16
        )
        inputs = torch.randn(64, 33, generator=torch.Generator().manual_seed(1)).to(home)
        targets = inputs.sum(1, keepdim=True)
        for _ in range(_NUM_STEPS):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
            losses[home.type] = loss.item()
    here, on_host = losses[device.type], losses["cpu"]
    assert abs(here - on_host) < 0.1 * on_host, f"loss = {here}; {on_host} on the host"
    return f"loss {here:.4f}, on the host {on_host:.4f}"


TRAINING_CHECKS: Mapping[str, Check] = {
    "Trainer in every precision": _trainer,
    "amp.initialize at O2": _apex_api,
}

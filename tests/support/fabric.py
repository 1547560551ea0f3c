"""A bare Fabric loop over the small models of the engine's tests."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lightning_mp.fabric_precision import AmpFabricPrecision
from support.engine import Mlp, make_batches

Batch = tuple[Tensor, Tensor]


def make_fabric_plugin(level: str, **kwargs: Any) -> AmpFabricPrecision:
    """Build the plugin of a level string such as ``"O2-bf16"``."""
    opt_level, _, half = level.partition("-")
    arguments: dict[str, Any] = {"opt_level": opt_level, "half_dtype": half or "fp16"}
    return AmpFabricPrecision(**arguments, **kwargs)


def make_fabric(precision: str | AmpFabricPrecision, **kwargs: Any) -> Fabric:
    """Build the stock Fabric on the CPU from a precision string or a plugin."""
    is_plugin = isinstance(precision, AmpFabricPrecision)
    chosen: dict[str, Any] = {"plugins": [precision]} if is_plugin else {"precision": precision}
    return Fabric(**{"accelerator": "cpu", "devices": 1, **chosen, **kwargs})


def make_adam(parameters: Iterable[Tensor]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def start(
    precision: str | AmpFabricPrecision,
    make_optimizer: Callable[[Iterable[Tensor]], Optimizer] = make_adam,
    model: nn.Module | None = None,
) -> tuple[Fabric, Any, Any]:
    """Set a model and its optimizer up."""
    fabric = make_fabric(precision)
    model = model or Mlp()
    return (fabric, *fabric.setup(model, make_optimizer(model.parameters())))


def train(
    fabric: Fabric,
    model: Any,
    optimizer: Any,
    batches: Iterable[Batch] | None = None,
    *,
    accumulate: int = 1,
    clip: dict[str, Any] | None = None,
    bad_batches: tuple[int, ...] = (),
) -> list[float]:
    """Train one pass over the batches and return the losses."""
    losses = []
    for index, (inputs, targets) in enumerate(make_batches(8) if batches is None else batches):
        is_stepping = (index + 1) % accumulate == 0
        with fabric.no_backward_sync(model, enabled=not is_stepping):
            loss = F.mse_loss(model(inputs), targets)
            losses.append(loss.item())
            bad = float("inf") if index in bad_batches else 1.0
            fabric.backward(loss * bad / accumulate)
        if is_stepping:
            if clip is not None:
                fabric.clip_gradients(model, optimizer, **clip)
            optimizer.step()
            optimizer.zero_grad()
    return losses

"""An engine, small models and a bare training loop, free of any framework."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import resolve_opt_level

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def make_engine(
    level: str = "O2-bf16",
    loss_scale: Any = None,
    *,
    fused: bool = True,
    master_weights: Any = None,
    **scaler: Any,
) -> AmpEngine:
    """Build the engine of a level string such as ``"O2-fp16"``."""
    opt_level, _, half = level.partition("-")
    properties = resolve_opt_level(
        opt_level,
        half_dtype=HALF[half or "fp16"],
        loss_scale=loss_scale,
        master_weights=master_weights,
    )
    return AmpEngine(properties, LossScaler(properties.loss_scale, **scaler), fused=fused)


def start(
    model: nn.Module,
    make_optimizer: Callable[[Iterable[Tensor]], Optimizer],
    level: str = "O2-bf16",
    **kwargs: Any,
) -> tuple[AmpEngine, Optimizer]:
    """Convert a model and attach one optimizer."""
    engine = make_engine(level, **kwargs)
    engine.convert(model)
    optimizer = make_optimizer(model.parameters())
    engine.attach([optimizer])
    return engine, optimizer


class Mlp(nn.Module):
    """Two layers of odd sizes around a norm layer, and one that is used on even calls only."""

    def __init__(self, num_inputs: int = 13, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(num_inputs, 17)
        self.norm = nn.LayerNorm(17)
        self.rare = nn.Linear(17, 17)
        self.last = nn.Linear(17, 3)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))
        if self.num_calls % 2 == 0:
            hidden = hidden + self.rare(hidden)
        self.num_calls += 1
        return self.last(hidden)


class ConvNet(nn.Module):
    """A channels_last convolution net with a batch norm."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 7, 3)
        self.norm = nn.BatchNorm2d(7)
        self.head = nn.Linear(7, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        image = x.unflatten(1, (3, -1, 5)).contiguous(memory_format=torch.channels_last)
        return self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


def make_batches(
    num_batches: int, num_inputs: int = 13, batch_size: int = 7
) -> list[tuple[Tensor, Tensor]]:
    """Return inputs ``[7, num_inputs]`` and targets ``[7, 3]`` of a smooth regression."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_batches, batch_size, num_inputs, generator=generator)
    return [(x, x[:, :3].sin() + x[:, 3:6]) for x in inputs]


def backward(engine: AmpEngine, model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """Run forward and backward on one batch and return the loss."""
    with engine.forward_context():
        loss = F.mse_loss(model(batch[0]), batch[1])
    engine.scale_loss(loss).backward()
    return float(loss.detach())


def train(
    engine: AmpEngine,
    model: nn.Module,
    optimizer: Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    *,
    before_update: Callable[[], None] | None = None,
    is_looked: bool | None = None,
    accumulate: int = 1,
) -> list[float]:
    """Train one pass over the batches and return the losses."""
    losses = []
    looked = {} if is_looked is None else {"is_looked": is_looked}
    for index, batch in enumerate(batches):
        if index % accumulate == 0:
            optimizer.zero_grad()
        losses.append(backward(engine, model, batch))
        if (index + 1) % accumulate == 0:
            engine.step(optimizer, before_update, **looked)
    return losses


def train_plain(
    model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]
) -> list[float]:
    """Train in plain FP32 and return the losses."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def snapshot(engine: AmpEngine, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Copy weights, masters and the optimizer's tensors."""
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        master = engine.masters.value_of(parameter)
        found[f"{name}.half"], found[f"{name}.master"] = parameter.detach(), master.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor | int | float):
                found[f"{name}.{key}"] = torch.as_tensor(value)
    return copy.deepcopy(found)


def set_gradients(model: nn.Module, value: float = 0.5) -> None:
    """Give every parameter a constant gradient in its own dtype."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Check that two snapshots have the same bits."""
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, f"different: {different}"

"""A half model with FP16_Optimizer, and a loop for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lightning_mp.fp16_utils import FP16_Optimizer, convert_network
from support.engine import make_batches

BATCHES = make_batches(12)
SCALES = [
    {},
    {"static_loss_scale": 128.0},
    {"dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 2.0**10, "scale_window": 3}},
]


class Net(nn.Module):
    """Half layers around an FP32 batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(13, 17)
        self.norm = nn.BatchNorm1d(17)
        self.last = nn.Linear(17, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def make(
    dtype: torch.dtype = torch.float16, optimizer: Callable[..., Any] = sgd, **kwargs: Any
) -> tuple[nn.Module, FP16_Optimizer]:
    model = convert_network(Net(), dtype)
    return model, FP16_Optimizer(optimizer(model.parameters()), verbose=False, **kwargs)


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    return F.mse_loss(model(batch[0].to(dtype)).float(), batch[1])


def masters_of(optimizer: FP16_Optimizer) -> list[torch.Tensor]:
    return [item.detach().clone() for group in optimizer.param_groups for item in group["params"]]


def train(model: nn.Module, optimizer: FP16_Optimizer, batches: Any = BATCHES) -> torch.Tensor:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)

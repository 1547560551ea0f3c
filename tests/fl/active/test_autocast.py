"""torch.autocast("fl") and the gradient scaler."""

import pytest
import torch
from torch import nn

F = nn.functional


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(7, 13, device="fl:0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_are_lowered_and_sums_are_not(x: torch.Tensor, dtype: torch.dtype):
    half = x.to(dtype)
    with torch.autocast("fl", dtype=dtype):
        assert (x @ x.t()).dtype is dtype
        assert F.linear(x, x).dtype is dtype
        assert F.conv1d(x[None], x[None, :, :3]).dtype is dtype
        assert F.softmax(half, -1).dtype is torch.float32
        assert F.layer_norm(half, (13,)).dtype is torch.float32
        assert F.mse_loss(half, half).dtype is torch.float32
        assert half.sum().dtype is torch.float32
        assert half.sum(dtype=dtype).dtype is dtype
        assert torch.cat([x, half]).dtype is torch.float32
        assert torch.cat([half, half]).dtype is dtype
        assert torch.relu(x).dtype is torch.float32
        with torch.autocast("fl", enabled=False):
            assert (x @ x.t()).dtype is torch.float32
    assert (x @ x.t()).dtype is torch.float32


def test_autocast_of_the_cpu_does_not_reach_fl(x: torch.Tensor):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype is torch.float32


def test_gradients_have_the_dtype_of_the_weights(x: torch.Tensor):
    layer = nn.Linear(13, 5).to("fl:0")
    with torch.autocast("fl", dtype=torch.bfloat16):
        layer(x).float().pow(2).sum().backward()
    assert layer.weight.grad.dtype is torch.float32


def test_the_scaler_steps_and_skips(x: torch.Tensor):
    layer = nn.Linear(13, 5).to("fl:0")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("fl", init_scale=256.0)
    with torch.autocast("fl", dtype=torch.float16):
        loss = layer(x).float().mean()
    before = layer.weight.detach().clone()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(layer.weight, before)
    before = layer.weight.detach().clone()
    layer.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight, before)
    assert scaler.get_scale() == 128.0

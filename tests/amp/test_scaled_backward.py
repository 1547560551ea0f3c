import pytest
import torch
from support.engine import Mlp, make_batches, make_engine
from support.tolerances import SAME_MATHS
from torch import nn
from torch.nn import functional as F

from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.scaled_backward import ScaledBackward


def window_of(engine, model, scaler):
    return ScaledBackward(list(model.parameters()), engine.masters, scaler, {})


def gradients(model):
    return [None if item.grad is None else item.grad.clone() for item in model.parameters()]


@pytest.mark.parametrize("scale", [1.0, 1000.0, 2.0**12])
def test_gradients_of_losses_with_different_scales_meet(scale):
    reference, model = Mlp(), Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    for index, (inputs, targets) in enumerate(make_batches(3)):
        F.mse_loss(reference(inputs), targets).backward()
        scaler = LossScaler(scale * 3**index)
        window = window_of(engine, model, scaler)
        scaler.scale_loss(F.mse_loss(model(inputs), targets)).backward()
        assert window.close().found_inf == 0
    torch.testing.assert_close(gradients(model), gradients(reference), **SAME_MATHS)


def test_half_gradients_become_fp32():
    model = Mlp()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    window = window_of(engine, model, LossScaler(64.0))
    with engine.forward_context():
        (model(torch.ones(5, 13)).sum() * 64.0).backward()
    assert model.first.weight.grad.dtype == torch.bfloat16
    window.close()
    assert {item.grad.dtype for item in model.parameters()} == {torch.float32}


def test_giving_up_restores_what_was_there():
    model = Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    model(torch.ones(5, 13)).sum().backward()
    before, tensors = gradients(model), [item.grad for item in model.parameters()]
    window = window_of(engine, model, LossScaler(64.0))
    model(torch.ones(5, 13)).sum().backward()
    window.abandon()
    torch.testing.assert_close(gradients(model), before, rtol=0, atol=0)
    assert all(
        item.grad is tensor for item, tensor in zip(model.parameters(), tensors, strict=True)
    )


def test_an_overflow_is_of_the_new_gradients_only():
    model = Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    flags = []
    for factor in (float("inf"), 1.0):
        window = window_of(engine, model, LossScaler(2.0))
        (model(torch.ones(5, 13)).sum() * factor).backward()
        flags.append(float(window.close().found_inf))
    assert flags == [1.0, 0.0]
    assert not torch.isfinite(model.last.weight.grad).all()


@pytest.mark.parametrize("first_is_sparse", [True, False])
def test_sparse_gradients_add_up(first_is_sparse):
    engine = make_engine("O0")
    table = nn.Embedding(7, 3, sparse=True)
    engine.convert(table)
    losses = [table(torch.tensor([1, 1, 4])).sum(), table.weight.sum()]
    expected = torch.ones(7, 3)
    expected[[1, 4]] += torch.tensor([[2.0], [1.0]])
    for loss in losses if first_is_sparse else losses[::-1]:
        scaler = LossScaler(8.0)
        window = window_of(engine, table, scaler)
        scaler.scale_loss(loss).backward()
        window.close()
    gradient = table.weight.grad
    torch.testing.assert_close(gradient.to_dense(), expected)


def test_a_scale_that_moved_needs_another_window():
    model = Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    scaler = LossScaler("dynamic")
    window = window_of(engine, model, scaler)
    assert window.has_scale_of(scaler)
    assert not window.has_scale_of(LossScaler("dynamic"))
    scaler.record(torch.tensor(1.0))
    scaler.update()
    assert not window.has_scale_of(scaler)

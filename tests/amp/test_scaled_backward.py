import pytest
import torch
from support.engine import Mlp, make_batches, make_engine
from support.tolerances import HALF_TRAINING, SAME_MATHS
from torch import nn
from torch.nn import functional as F

from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.scaled_backward import ScaledBackward
from lightning_mp.amp.shared_gradients import SharedGradients
from lightning_mp.amp.unscaled_gradients import UnscaledGradients


def open_window(engine, model, scaler, loss, **kwargs):
    gradients = kwargs.pop("gradients", None) or gradients_of(engine)
    window = ScaledBackward(list(model.parameters()), gradients, scaler, names={}, **kwargs)
    return window, window.begin(loss)


def gradients_of(engine, is_shared=False):
    return SharedGradients(engine.masters, UnscaledGradients(), is_shared=is_shared)


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
        loss = F.mse_loss(model(inputs), targets)
        window, scaled_loss = open_window(engine, model, scaler, loss)
        scaled_loss.backward()
        assert window.close().found_inf == 0
    torch.testing.assert_close(gradients(model), gradients(reference), **SAME_MATHS)


def test_half_gradients_become_fp32():
    model = Mlp()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    with engine.forward_context():
        loss = model(torch.ones(5, 13)).sum()
        window, scaled_loss = open_window(engine, model, LossScaler(64.0), loss)
        scaled_loss.backward()
    assert model.first.weight.grad.dtype == torch.bfloat16
    window.close()
    assert {item.grad.dtype for item in model.parameters()} == {torch.float32}


def test_giving_up_restores_what_was_there():
    model = Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    model(torch.ones(5, 13)).sum().backward()
    before, tensors = gradients(model), [item.grad for item in model.parameters()]
    loss = model(torch.ones(5, 13)).sum()
    window, scaled_loss = open_window(engine, model, LossScaler(64.0), loss)
    scaled_loss.backward()
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
        loss = model(torch.ones(5, 13)).sum() * factor
        window, scaled_loss = open_window(engine, model, LossScaler(2.0), loss)
        scaled_loss.backward()
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
        window, scaled_loss = open_window(engine, table, LossScaler(8.0), loss)
        scaled_loss.backward()
        window.close()
    gradient = table.weight.grad
    torch.testing.assert_close(gradient.to_dense(), expected)


def test_a_scale_that_moved_between_delayed_backwards():
    reference, model = Mlp(), Mlp()
    engine = make_engine("O2-bf16")
    engine.convert(model)
    gradients = gradients_of(engine, is_shared=True)
    scaler = LossScaler("dynamic", init_scale=2.0**12)
    for index, (inputs, targets) in enumerate(make_batches(3)):
        F.mse_loss(reference(inputs), targets).backward()
        loss = F.mse_loss(model(inputs), targets)
        window, scaled_loss = open_window(
            engine, model, scaler, loss, gradients=gradients, delay_unscale=index < 2
        )
        scaled_loss.backward()
        window.close()
        scaler.record(torch.tensor(1.0))
        scaler.update()
    assert scaler.loss_scale == 2.0**9
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert parameter.grad is engine.masters.of(parameter).grad
        torch.testing.assert_close(parameter.grad.float(), expected.grad, **HALF_TRAINING)


def test_delayed_after_unscaled_gradients_add_up():
    model = nn.Linear(3, 1, bias=False)
    engine = make_engine("O2-fp16")
    engine.convert(model)
    gradients = gradients_of(engine, is_shared=True)
    for delay_unscale in (False, True, False):
        with engine.forward_context():
            loss = model(torch.ones(1, 3)).sum()
        window, scaled_loss = open_window(
            engine, model, LossScaler(24.0), loss, gradients=gradients, delay_unscale=delay_unscale
        )
        scaled_loss.backward()
        window.close()
    torch.testing.assert_close(model.weight.grad, torch.full((1, 3), 3.0))
    assert engine.masters.of(model.weight).grad is model.weight.grad


@pytest.mark.parametrize("is_bucket_view", [True, False])
def test_buckets_of_ddp_that_are_written_again(is_bucket_view, tmp_path):
    reference, model = Mlp(), Mlp()
    engine = make_engine("O0")
    engine.convert(model)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=is_bucket_view, find_unused_parameters=True
        )
        for inputs, targets in make_batches(4):
            F.mse_loss(reference(inputs), targets).backward()
            loss = F.mse_loss(wrapped(inputs), targets)
            window, scaled_loss = open_window(engine, model, LossScaler(3.0), loss)
            scaled_loss.backward()
            window.close()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(gradients(model), gradients(reference), **SAME_MATHS)

"""Steps, closures, skips and gradients of FP16_Optimizer."""

import copy
from typing import Any

import pytest
import torch
from support.engine import Mlp, train_plain
from support.fp16_optimizer import BATCHES, SCALES, Net, loss_of, make, masters_of, sgd, train
from support.tolerances import HALF_INPUT, HALF_TRAINING, SAME_MATHS
from torch import nn

from lightning_mp.fp16_utils import FP16_Optimizer, convert_network

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "optimizer", [sgd, lambda params: torch.optim.AdamW(params, lr=1e-2)], ids=["sgd", "adamw"]
)
def test_training_follows_a_plain_fp32_loop(dtype: torch.dtype, scale, optimizer):
    plain = Net()
    expected = torch.tensor(train_plain(plain, optimizer(plain.parameters()), BATCHES))
    model, wrapped = make(dtype, optimizer, **scale)
    torch.testing.assert_close(train(model, wrapped), expected, **HALF_TRAINING)
    for parameter, master in zip(model.parameters(), masters_of(wrapped), strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(master.to(parameter.dtype), parameter)


@pytest.mark.parametrize("updates", ["each", "last", "by hand"])
@pytest.mark.parametrize("scale", SCALES)
def test_several_backwards_add_up_to_one_of_their_sum(updates: str, scale):
    model, optimizer = make(torch.bfloat16, **scale)
    other, summed = make(torch.bfloat16, **scale)
    for wrapped in (optimizer, summed):
        wrapped.zero_grad()
    model.eval()
    other.eval()
    for index, batch in enumerate(BATCHES[:3]):
        is_last = updates != "by hand" and index == 2
        update = updates == "each" or is_last
        optimizer.backward(loss_of(model, batch), update_master_grads=update)
    if updates == "by hand":
        optimizer.update_master_grads()
    summed.backward(sum(loss_of(other, batch) for batch in BATCHES[:3]))
    for found, expected in zip(
        optimizer.inspect_master_grad_data()[0],
        summed.inspect_master_grad_data()[0],
        strict=True,
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, **HALF_TRAINING)


@pytest.mark.parametrize("scale", SCALES)
def test_gradients_are_unscaled_once_however_often_masters_are_updated(scale):
    model, optimizer = make(torch.bfloat16, **scale)
    optimizer.backward(loss_of(model, BATCHES[0]))
    before = [item.clone() for item in optimizer.inspect_master_grad_data()[0]]
    optimizer.update_master_grads()
    for found, expected in zip(optimizer.inspect_master_grad_data()[0], before, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["half", "fp32"])
def test_step_with_bad_gradients_changes_nothing_but_a_dynamic_scale(scale, bad, where):
    model, optimizer = make(**scale)
    train(model, optimizer, BATCHES[:2])
    masters, state = masters_of(optimizer), copy.deepcopy(optimizer.optimizer.state_dict())
    before = optimizer.loss_scale
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, BATCHES[2]), update_master_grads=False)
    parameter = model.first.weight if where == "half" else model.norm.weight
    parameter.grad.view(-1)[3] = bad
    optimizer.update_master_grads()
    assert optimizer.overflow
    assert optimizer.clip_master_grads(1.0) == -1
    assert optimizer.inspect_master_grad_data() is None
    assert optimizer.step() is None
    assert optimizer.loss_scale == (before / 2 if "dynamic_loss_scale" in scale else before)
    for found, expected in zip(masters_of(optimizer), masters, strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(optimizer.optimizer.state_dict(), state, rtol=0, atol=0)
    losses = train(model, optimizer, BATCHES[3:])
    assert not optimizer.overflow
    assert losses.isfinite().all()


def test_a_start_at_2_to_32_finds_its_scale_and_says_so(capsys: pytest.CaptureFixture[str]):
    model = convert_network(Net(), torch.float16)
    optimizer = FP16_Optimizer(sgd(model.parameters()), dynamic_loss_scale=True)
    start = masters_of(optimizer)
    num_skipped = 0
    while True:
        train(model, optimizer, BATCHES[:1])
        if not optimizer.overflow:
            break
        num_skipped += 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == num_skipped > 5
    assert lines[0] == "OVERFLOW: skipping step, loss scale 4294967296.0 -> 2147483648.0"
    assert optimizer.loss_scale == 2.0 ** (32 - num_skipped)
    assert any(
        not torch.equal(old, new) for old, new in zip(start, masters_of(optimizer), strict=True)
    )


def test_clipping_sees_true_gradients():
    model, optimizer = make(torch.bfloat16, static_loss_scale=1024.0)
    plain, other = make(torch.bfloat16)
    optimizer.backward(loss_of(model, BATCHES[0]))
    other.backward(loss_of(plain, BATCHES[0]))
    norm = optimizer.clip_master_grads(1e-2)
    torch.testing.assert_close(norm, other.clip_master_grads(1e9), **HALF_TRAINING)
    gradients = [item.reshape(-1) for item in optimizer.inspect_master_grad_data()[0]]
    assert torch.cat(gradients).norm().item() == pytest.approx(1e-2, rel=HALF_INPUT["rtol"])


@pytest.mark.parametrize("keywords", [{}, {"set_grads_to_None": True}, {"set_to_none": True}])
def test_zero_grad_clears_model_and_masters(keywords):
    model, optimizer = make()
    optimizer.backward(loss_of(model, BATCHES[0]))
    optimizer.zero_grad(**keywords)
    tensors = [*model.parameters(), *optimizer.param_groups[0]["params"]]
    for tensor in tensors:
        assert tensor.grad is None if keywords else not tensor.grad.any()
    train(model, optimizer, BATCHES[:2])


@pytest.mark.parametrize("how", ["stock backward", "masters not updated"])
def test_step_without_the_gradients_of_the_masters_is_refused(how: str):
    model, optimizer = make()
    loss = loss_of(model, BATCHES[0])
    if how == "stock backward":
        loss.backward()
    else:
        train(model, optimizer, BATCHES[:1])
        optimizer.zero_grad()
        optimizer.backward(loss_of(model, BATCHES[0]), update_master_grads=False)
    with pytest.raises(RuntimeError, match=r"optimizer\.backward\(loss\) is needed"):
        optimizer.step()


def test_closure_gives_the_steps_of_the_plain_form():
    model, optimizer = make(static_loss_scale=64.0)
    other, by_closure = make(static_loss_scale=64.0)
    expected = train(model, optimizer)
    for index, batch in enumerate(BATCHES):

        def closure(batch: Any = batch) -> torch.Tensor:
            by_closure.zero_grad(set_to_none=True)
            loss = loss_of(other, batch)
            by_closure.backward(loss)
            return loss

        loss = by_closure.step(closure)
        assert loss.item() == expected[index]
    for found, wanted in zip(masters_of(by_closure), masters_of(optimizer), strict=True):
        torch.testing.assert_close(found, wanted, **SAME_MATHS)


def lbfgs(params: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(params, lr=0.1, max_iter=4)


def test_lbfgs_evaluates_at_moved_weights_and_finds_its_scale():
    model, optimizer = make(torch.float16, lbfgs, dynamic_loss_scale=True)
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, BATCHES[0])
        optimizer.backward(loss)
        seen.append((optimizer.overflow, loss.item()))
        return loss

    for _ in range(3):
        optimizer.step(closure)
    losses = [loss for is_bad, loss in seen if not is_bad]
    assert sum(is_bad for is_bad, _ in seen) > 5
    assert losses[-1] < 0.8 * losses[0]
    assert len(set(losses)) > 4


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("optimizer_class", [sgd, lbfgs])
@pytest.mark.parametrize("first_bad", [0, 2])
def test_closure_that_never_gets_finite_changes_no_weight(scale, optimizer_class, first_bad):
    model, optimizer = make(torch.bfloat16, optimizer_class, **scale)
    masters = masters_of(optimizer)
    num_calls = 0

    def closure() -> torch.Tensor:
        nonlocal num_calls
        optimizer.zero_grad()
        loss = loss_of(model, BATCHES[0])
        optimizer.backward(loss * float("nan") if num_calls >= first_bad else loss)
        num_calls += 1
        return loss

    optimizer.step(closure)
    if optimizer_class is sgd and first_bad:
        return
    assert optimizer.overflow
    assert optimizer.loss_scale == (1.0 if "dynamic_loss_scale" in scale else optimizer.loss_scale)
    for found, expected in zip(masters_of(optimizer), masters, strict=True):
        assert torch.equal(found, expected)
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert torch.equal(parameter, master.to(parameter.dtype))


def test_scheduler_of_the_wrapped_optimizer_works_through_a_skipped_first_step():
    model, optimizer = make(dynamic_loss_scale=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.5)
    for batch in BATCHES[:3]:
        train(model, optimizer, [batch])
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 8)


def test_groups_hold_what_their_names_say():
    wrapped = FP16_Optimizer(sgd(convert_network(Net(), torch.float16).parameters()))
    assert [len(group) for group in wrapped.fp16_groups] == [4]
    assert [len(group) for group in wrapped.fp32_from_fp16_groups] == [4]
    assert [len(group) for group in wrapped.fp32_from_fp32_groups] == [2]
    assert wrapped.state is wrapped.optimizer.state


def test_frozen_parameters_stay_as_they_are():
    model = convert_network(Net(), torch.float16)
    model.first.weight.requires_grad_(False)
    optimizer = FP16_Optimizer(sgd(model.parameters()), verbose=False)
    frozen = model.first.weight.detach().clone()
    train(model, optimizer, BATCHES[:2])
    assert torch.equal(model.first.weight, frozen)
    assert optimizer.param_groups[0]["params"][0] is model.first.weight


def test_sparse_gradients_reach_their_masters():
    model = nn.Embedding(13, 5, sparse=True).bfloat16()
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), 4.0, verbose=False)
    before = model.weight.detach().float()
    optimizer.zero_grad()
    optimizer.backward(model(torch.tensor([3, 3, 7])).float().sum())
    optimizer.step()
    moved = (before - masters_of(optimizer)[0]).sum(dim=1)
    assert moved.nonzero().view(-1).tolist() == [3, 7]
    assert moved[3].item() == pytest.approx(10.0)


@pytest.mark.parametrize(
    "wrong", ["not an optimizer", FP16_Optimizer(sgd([torch.ones(3).requires_grad_()]))]
)
def test_other_than_optimizers_are_refused(wrong):
    with pytest.raises(TypeError, match=r"init_optimizer = \w+; a torch\.optim\.Optimizer is ne"):
        FP16_Optimizer(wrong)


def test_double_parameters_are_refused_before_anything_is_replaced():
    model = nn.Sequential(nn.Linear(3, 5).half(), nn.Linear(5, 3).double())
    inner = sgd(model.parameters())
    with pytest.raises(TypeError, match=r"shape \(3, 5\) has dtype torch\.float64; allowed"):
        FP16_Optimizer(inner)
    assert inner.param_groups[0]["params"][0] is model[0].weight


def test_unknown_scaler_arguments_are_refused():
    with pytest.raises(ValueError, match=r"dynamic_loss_args has \['growth'\]; allowed are"):
        make(dynamic_loss_scale=True, dynamic_loss_args={"growth": 2})


def test_scaler_arguments_without_effect_are_warned_of():
    with pytest.warns(UserWarning, match="dynamic_loss_args has no effect"):
        make(dynamic_loss_args={"init_scale": 2.0})


def test_scale_can_be_set():
    _, optimizer = make(dynamic_loss_scale=True)
    optimizer.loss_scale = 8.0
    assert optimizer.loss_scaler.cur_scale == 8.0


def test_weights_that_some_batches_do_not_use_are_left_alone():
    plain = Mlp()
    model = convert_network(copy.deepcopy(plain), torch.bfloat16)
    optimizer = FP16_Optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), verbose=False)
    rare = []
    for batch in BATCHES[:4]:
        optimizer.zero_grad(set_to_none=True)
        optimizer.backward(loss_of(model, batch))
        optimizer.step()
        rare.append(model.rare.weight.detach().clone())
    assert torch.equal(rare[0], rare[1])
    assert not torch.equal(rare[1], rare[2])

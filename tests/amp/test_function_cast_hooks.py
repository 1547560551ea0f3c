"""Hooks of a model at O1: scope, outputs, copies, borrowed calls."""

import copy
import pickle
import threading
from collections import namedtuple

import pytest
import torch
from support.o1_implementations import IMPLEMENTATIONS
from support.tolerances import HALF_STEP
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_mp.amp.function_cast_hooks import FunctionCastHooks
from lightning_mp.amp.function_casts import FunctionCasts, casts_are_active, disable_casts

FP32 = torch.float32
X = torch.linspace(-1, 1, 21).view(3, 7)
Output = namedtuple("Output", "hidden label double")


class Net(nn.Module):
    """Says which dtype its layer's output had."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.seen = nn.Linear(7, 7), []

    def forward(self, x, depth=0):
        hidden = self.layer(x)
        self.seen.append(hidden.dtype)
        if depth:
            self.seen.append(self(hidden, depth - 1).hidden.dtype)
        return Output(hidden, torch.arange(3), x.double())

    def loss(self, x):
        return self(x).hidden.square().mean()

    def fail(self, x):
        return self.layer(x) @ self.layer(x)


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def half(request):
    return request.param


@pytest.fixture(params=IMPLEMENTATIONS)
def casts(request, half):
    return FunctionCasts(half, implementation=request.param, device_types=("cpu",))


def test_forward_casts_and_outputs_are_fp32(casts, half):
    net = Net()
    hooks = FunctionCastHooks(net, casts)
    output = net(X)
    assert isinstance(output, Output)
    assert net.seen == [half]
    assert [item.dtype for item in output] == [FP32, torch.int64, torch.float64]
    with casts.context():
        assert torch.equal(output.hidden, net.layer(X).float())
    assert not casts_are_active()
    assert net.layer(X).dtype == FP32
    hooks.remove()
    assert net(X).hidden.dtype == net.seen[-1] == FP32
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


@pytest.mark.parametrize("output_dtype", [None, torch.float16, torch.bfloat16])
def test_output_dtype(casts, half, output_dtype):
    net = Net()
    FunctionCastHooks(net, casts, output_dtype=output_dtype)
    assert net(X).hidden.dtype == (output_dtype or half)


def test_only_the_outermost_forward_is_a_scope(casts, half):
    net = Net()
    FunctionCastHooks(net, casts)
    assert net(X, depth=2).hidden.dtype == FP32
    assert net.seen == [half, half, half, half, half]
    outer = nn.Sequential(net.layer)
    FunctionCastHooks(outer, casts)
    FunctionCastHooks(net.layer, casts)
    outer.register_forward_hook(lambda *args: net.seen.append(args[2].dtype))
    assert outer(X).dtype == FP32
    with casts.context():
        assert net(X).hidden.dtype == half


def test_disabled_casts_stay_off(casts):
    net = Net()
    FunctionCastHooks(net, casts)
    with casts.context(), disable_casts():
        assert net(X).hidden.dtype == FP32
    assert net.seen == [FP32]


def test_without_scope_only_the_outputs_are_cast(casts, half):
    net = Net()
    FunctionCastHooks(net, casts, is_scope=False)
    assert net(X).hidden.dtype == FP32
    with casts.context():
        assert net(X, depth=1).hidden.dtype == FP32
    assert net.seen == [FP32, half, half, half]


def test_gradients_go_through(casts):
    net = Net()
    expected = torch.autograd.grad(net.loss(X), net.layer.weight)[0]
    FunctionCastHooks(net, casts)
    net.loss(X).backward()
    assert net.layer.weight.grad.dtype == FP32
    torch.testing.assert_close(net.layer.weight.grad, expected, **HALF_STEP)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_of_the_whole_model(casts, use_reentrant):
    net = Net()
    FunctionCastHooks(net, casts)
    x = X.clone().requires_grad_()
    net(x).hidden.square().mean().backward()
    expected, x.grad, net.layer.weight.grad = (x.grad, net.layer.weight.grad), None, None
    hidden = checkpoint(net, x, use_reentrant=use_reentrant)[0]
    hidden.square().mean().backward()
    assert len(set(net.seen)) == 1
    assert torch.equal(x.grad, expected[0])
    assert torch.equal(net.layer.weight.grad, expected[1])


def test_exception_in_forward_restores(casts, half):
    net = Net()
    hooks = FunctionCastHooks(net, casts)
    for bad in (torch.ones(3, 5), None):
        with pytest.raises((RuntimeError, TypeError)):
            net(bad)
        assert not casts_are_active()
    assert net(X).hidden.dtype == FP32
    assert net.seen == [half]
    assert hooks._num_open == 0


def test_exception_in_another_pre_hook_restores(casts, half):
    net = Net()
    first = net.register_forward_pre_hook(lambda *_: 1 / 0)
    FunctionCastHooks(net, casts)
    last = net.register_forward_pre_hook(lambda *_: 1 / 0)
    for handle in (first, last):
        with pytest.raises(ZeroDivisionError):
            net(X)
        assert not casts_are_active()
        handle.remove()
    net(X)
    assert net.seen == [half]


def test_interrupt_is_undone_by_removal(casts):
    class Interrupted(Net):
        def forward(self, x):
            raise KeyboardInterrupt

    net = Interrupted()
    hooks = FunctionCastHooks(net, casts)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    hooks.remove()
    assert not casts_are_active()
    assert not torch._C._is_any_autocast_enabled()


def test_borrowed_call_is_left_alone(casts, half):
    net = Net()
    FunctionCastHooks(net, casts)
    net.forward = net.loss_of_layer = lambda x: net.layer(x).to(half)
    assert net(X).dtype == half
    assert casts_are_active() is False
    del net.forward
    assert net(X).hidden.dtype == FP32
    assert net.seen == [half]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), copy.copy]
)
def test_copies_carry_inert_hooks(casts, half, duplicate):
    net = Net()
    FunctionCastHooks(net, casts)
    other = duplicate(net)
    other.seen = []
    other(X)
    assert other.seen == [FP32]
    net(X)
    assert net.seen == [half]


def test_two_threads_at_once(casts, half):
    net, barrier = Net(), threading.Barrier(2)
    net.layer.register_forward_hook(lambda *_: [barrier.wait(), None][1])
    FunctionCastHooks(net, casts)
    outputs = []
    threads = [threading.Thread(target=lambda: outputs.append(net(X).hidden)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert net.seen == [half, half]
    assert [output.dtype for output in outputs] == [FP32, FP32]


def test_another_model_and_the_code_around_stay_as_they_are(casts, half):
    net, other = Net(), Net()
    FunctionCastHooks(net, casts)
    net(X)
    other(X)
    assert (net.seen, other.seen) == ([half], [FP32])
    assert (X @ X.T).dtype == FP32

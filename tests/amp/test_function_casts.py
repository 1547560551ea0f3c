"""Regions of O1: nesting, errors, switching off, checkpointing, threads, implementations."""

import threading

import pytest
import torch
from support.o1_implementations import HAS_NATIVE, IMPLEMENTATIONS
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_mp.amp import function_casts
from lightning_mp.amp.function_casts import (
    FunctionCasts,
    active_half_dtype,
    casts_are_active,
    clear_cast_cache,
    disable_casts,
)
from lightning_mp.amp.function_registry import register_float_function, unregister_all


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def half(request):
    torch.manual_seed(3)
    return request.param


@pytest.fixture(params=IMPLEMENTATIONS)
def casts(request, half):
    return FunctionCasts(half, implementation=request.param, device_types=("cpu",))


def matmul_dtype():
    return (torch.ones(3, 3) @ torch.ones(3, 3)).dtype


def test_regions_nest_and_end(casts, half):
    assert not casts_are_active()
    assert active_half_dtype() is None
    with casts.context():
        with casts.context():
            assert matmul_dtype() == half
        assert casts_are_active()
        assert active_half_dtype() == half
        assert matmul_dtype() == half
    assert not casts_are_active()
    assert matmul_dtype() == torch.float32


def test_inner_region_does_nothing(casts):
    with casts.context():
        depth = torch._C._len_torch_function_stack()
        with casts.context():
            assert torch._C._len_torch_function_stack() == depth
        assert torch._C._len_torch_function_stack() == depth


def test_region_within_a_region_of_the_other_dtype(casts, half):
    other = torch.bfloat16 if half == torch.float16 else torch.float16
    inner = FunctionCasts(other, implementation=casts.implementation, device_types=("cpu",))
    with casts.context():
        with inner.context():
            assert matmul_dtype() == other
        assert matmul_dtype() == half


def product_and_exp_of(weight):
    product = torch.ones(3, 3) @ weight
    return product.dtype, torch.exp(product).dtype


@pytest.mark.parametrize("outer", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_stock", [True, False])
def test_region_within_autocast_has_its_own_dtype_and_rules(casts, half, outer, is_stock):
    weight = nn.Parameter(torch.ones(3, 3))
    region = FunctionCasts(outer, implementation=casts.implementation, device_types=("cpu",))
    around = torch.autocast("cpu", dtype=outer) if is_stock else region.context()
    with around:
        dtypes = product_and_exp_of(weight)
        with casts.context():
            assert product_and_exp_of(weight) == (half, torch.float32)
            torch.mm(weight, weight).float().sum().backward()
        with pytest.raises(ZeroDivisionError), casts.context():
            _ = torch.mm(weight, weight), 1 / 0
        assert product_and_exp_of(weight) == dtypes
    assert dtypes == (outer, outer if is_stock else torch.float32)
    assert weight.grad is not None
    assert not torch._C._is_any_autocast_enabled()


def test_exception_restores(casts):
    with pytest.raises(ZeroDivisionError), casts.context(), casts.context():
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), casts.context(), disable_casts():
        _ = 1 / 0
    assert not casts_are_active()
    assert matmul_dtype() == torch.float32
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch._C._is_any_autocast_enabled()


def test_disable_casts(casts, half):
    with disable_casts():
        assert matmul_dtype() == torch.float32
    with casts.context():
        with disable_casts(), disable_casts():
            assert not casts_are_active()
            assert active_half_dtype() is None
            assert matmul_dtype() == torch.float32
            assert torch.ones(3, dtype=half).exp().dtype == half
            with casts.context():
                assert matmul_dtype() == half
                assert casts_are_active()
            assert matmul_dtype() == torch.float32
        assert matmul_dtype() == half


def test_disable_casts_leaves_stock_autocast_alone():
    with torch.autocast("cpu", dtype=torch.bfloat16), disable_casts():
        assert matmul_dtype() == torch.bfloat16


def test_other_threads_are_not_cast(casts):
    seen = []
    with casts.context():
        thread = threading.Thread(target=lambda: seen.append((matmul_dtype(), casts_are_active())))
        thread.start()
        thread.join()
    assert seen == [(torch.float32, False)]


def test_one_object_in_two_threads(casts, half):
    barrier, seen = threading.Barrier(2), []

    def work():
        with casts.context():
            barrier.wait()
            seen.append(matmul_dtype())
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [half, half]


def test_another_model_stays_as_it_is(casts, half):
    model, other = nn.Linear(7, 5), nn.Linear(7, 5)
    x = torch.randn(3, 7)
    with casts.context():
        assert model(x).dtype == half
    assert other(x).dtype == torch.float32


class Block(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.linear, self.norm, self.seen = nn.Linear(13, 13), nn.LayerNorm(13), seen

    def forward(self, x):
        hidden = self.linear(x)
        self.seen.append(hidden.dtype)
        hidden = torch.softmax(torch.exp(hidden * 0.1), -1) * hidden.sum(-1, keepdim=True)
        return self.norm(hidden) + torch.log(hidden.abs() + 1)


def gradients(casts, net, use_reentrant, where, *, is_off=False):
    net.zero_grad()
    x = torch.linspace(-1, 1, 52).view(4, 13).requires_grad_()

    def forward():
        y = x
        for block in net:
            if use_reentrant is None:
                y = block(y)
            else:
                y = checkpoint(block, y, use_reentrant=use_reentrant)
        return y.float().square().sum()

    def backward(loss):
        with casts.context():
            loss.backward()

    with casts.context():
        if is_off:
            with disable_casts():
                loss = forward()
        else:
            loss = forward()
        if where == "inside":
            backward(loss)
    if where == "outside":
        backward(loss)
    if where == "thread":
        thread = threading.Thread(target=backward, args=(loss,))
        thread.start()
        thread.join()
    return [x.grad, *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("is_off", [False, True])
@pytest.mark.parametrize("where", ["inside", "outside", "thread"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_gradient(casts, half, use_reentrant, where, is_off):
    seen = []
    net = nn.Sequential(Block(seen), Block(seen))
    plain = [grad.clone() for grad in gradients(casts, net, None, where, is_off=is_off)]
    again = gradients(casts, net, use_reentrant, where, is_off=is_off)
    assert len(seen) == 6  # twice two forwards, and two computed again
    assert set(seen) == {torch.float32 if is_off else half}
    for expected, grad in zip(plain, again, strict=True):
        assert torch.equal(expected, grad)


def test_backward_in_the_region_is_cast_and_outside_is_not(half):
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *grad_outputs):
            seen.append(matmul_dtype())
            return grad_outputs[0]

    casts = FunctionCasts(half, implementation="python")
    x = torch.ones(3, requires_grad=True)
    with casts.context():
        Probe.apply(x).sum().backward(retain_graph=True)
        torch.autograd.backward([Probe.apply(x).sum()])
        torch.autograd.grad(Probe.apply(x).sum(), [x])
    Probe.apply(x).sum().backward()
    assert seen == [half, half, half, torch.float32]


def test_clearing_outside_of_regions_is_harmless(casts):
    clear_cast_cache()
    casts.clear_cache()


def test_implementation_is_chosen_with_a_reason(half, monkeypatch):
    monkeypatch.setattr(function_casts, "native_status", lambda _: (False, "no kernels here"))
    casts = FunctionCasts(half)
    assert (casts.implementation, casts.reason) == ("python", "no kernels here")
    assert FunctionCasts(half, implementation="python").reason == "the Python mode was asked for"


def test_native_that_is_not_available_is_an_error(half):
    with pytest.raises(RuntimeError, match=r"native casts on .* = not available"):
        FunctionCasts(half, implementation="native", device_types=("cpu", "meta"))


def test_bad_arguments():
    with pytest.raises(ValueError, match="implementation = 'c'; allowed: 'auto', 'native'"):
        FunctionCasts(torch.float16, implementation="c")
    with pytest.raises(ValueError, match=r"half_dtype = torch.float64; allowed"):
        FunctionCasts(torch.float64)


def test_allow_banned(casts, half):
    allowing = FunctionCasts(
        half, allow_banned=True, implementation=casts.implementation, device_types=("cpu",)
    )
    x = torch.rand(7).to(half)
    with allowing.context():
        assert F.binary_cross_entropy(x, x).dtype == torch.float32


@pytest.mark.skipif(not HAS_NATIVE, reason="_O1 is not built")
def test_a_users_word_on_one_function_changes_no_other(half):
    x = torch.rand(7).to(half)
    casts = FunctionCasts(half, implementation="native", device_types=("cpu",))

    def outcome():
        with casts.context():
            return F.binary_cross_entropy(x, x).dtype

    before = outcome()
    register_float_function(torch, "sin")
    try:
        assert outcome() == before == torch.float32
    finally:
        unregister_all()


@pytest.mark.skipif(not HAS_NATIVE, reason="_O1 is not built")
def test_native_takes_users_torch_functions_from_an_overlay(half):
    casts = FunctionCasts(half, implementation="native", device_types=("cpu",))
    with casts.context():
        assert torch._C._len_torch_function_stack() == 0
        assert matmul_dtype() == half
    register_float_function(torch.Tensor, "__matmul__")
    try:
        with casts.context():
            assert torch._C._len_torch_function_stack() == 1
            assert matmul_dtype() == torch.float32
            assert torch.mm(torch.ones(3, 3), torch.ones(3, 3)).dtype == half
    finally:
        unregister_all()

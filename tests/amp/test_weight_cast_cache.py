"""Casts of weights: one per outermost forward, never stale, always differentiable."""

import pytest
import torch
from support.tolerances import HALF_STEP
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.overrides import TorchFunctionMode

from lightning_mp.amp.function_casts import FunctionCasts, clear_cast_cache
from lightning_mp.amp.weight_cast_cache import WeightCastCache


class CountCasts(TorchFunctionMode):
    """Count the casts to half that a mode above makes."""

    def __init__(self, weight):
        self.weight, self.num_casts = weight, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.to and args[0] is self.weight:
            self.num_casts += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def casts(request):
    torch.manual_seed(3)
    return FunctionCasts(request.param, implementation="python")


@pytest.fixture
def weight():
    torch.manual_seed(3)
    return nn.Parameter(torch.rand(7, 7))


X = torch.linspace(0, 1, 21).view(3, 7)


def test_weight_used_three_times_is_cast_once_per_forward(casts, weight):
    with CountCasts(weight) as count:
        for num_forwards in (1, 2):
            with casts.context():
                (F.linear(X, weight) @ weight @ weight).float().sum().backward()
            assert count.num_casts == num_forwards
    plain = weight.detach().clone().requires_grad_()
    (F.linear(X, plain) @ plain @ plain).sum().mul(2).backward()
    torch.testing.assert_close(weight.grad, plain.grad, **HALF_STEP)


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_use_without_gradients_first(casts, weight, first):
    with casts.context():
        with first():
            F.linear(X, weight)
        F.linear(X, weight).float().sum().backward()
    assert weight.grad is not None
    frozen = nn.Parameter(torch.rand(7, 7), requires_grad=False)
    x = X.clone().requires_grad_()
    with casts.context():
        with first():
            F.linear(X, frozen)
        F.linear(x, frozen).float().sum().backward()
    assert x.grad is not None


def test_gradients_switched_on_and_off(casts, weight):
    with casts.context():
        for is_on in (True, False, True):
            weight.requires_grad_(is_on)
            assert F.linear(X, weight).requires_grad is is_on


def write_by_optimizer(weight):
    weight.grad = torch.ones(7, 7)
    torch.optim.SGD([weight], lr=1.0).step()


def write_by_a_hidden_kernel(weight):
    class Hidden(torch.optim.SGD):
        def step(self, closure=None):
            with torch._C.DisableTorchFunction():
                weight.data.add_(1)

    Hidden([weight], lr=1.0).step()


def write_in_place(weight):
    with torch.no_grad():
        weight.add_(1)


def write_by_data(weight):
    weight.data.add_(1)


def replace_data(weight):
    weight.data = weight.detach() + 1


def write_unseen(weight):
    with torch._C.DisableTorchFunction():
        weight.data.add_(1)
    clear_cast_cache()


@pytest.mark.parametrize(
    "write",
    [
        write_by_optimizer,
        write_by_a_hidden_kernel,
        write_in_place,
        write_by_data,
        replace_data,
        write_unseen,
    ],
)
def test_a_written_weight_is_cast_anew(casts, weight, write):
    with casts.context():
        F.linear(X, weight)
        write(weight)
        after = F.linear(X, weight)
    with casts.context():
        assert torch.equal(after, F.linear(X, weight))


def test_object_clears_its_cache(casts, weight):
    with casts.context():
        before = F.linear(X, weight)
        with torch._C.DisableTorchFunction():
            weight.data.add_(1)
        casts.clear_cache()
        assert not torch.equal(before, F.linear(X, weight))


def test_optimizer_hook_is_gone_after_the_region(casts, weight):
    hooks = _global_optimizer_post_hooks
    before = dict(hooks)
    with casts.context():
        assert len(hooks) == len(before) + 1
    assert dict(hooks) == before
    with pytest.raises(ZeroDivisionError), casts.context():
        _ = 1 / 0
    assert dict(hooks) == before


def test_cache_is_empty_after_the_outermost_region(casts, weight):
    cache = casts._mode.cache
    with casts.context():
        with casts.context():
            F.linear(X, weight)
        assert len(cache) == 1
    assert len(cache) == 0


def test_entry_of_a_dead_weight_is_not_taken_for_another():
    cache = WeightCastCache(torch.bfloat16)
    for value in range(50):
        assert cache.cast(nn.Parameter(torch.full((3,), float(value))))[0] == value


def test_weight_made_in_inference_mode_is_not_kept():
    cache = WeightCastCache(torch.bfloat16)
    with torch.inference_mode():
        weight = nn.Parameter(torch.ones(3))
        assert cache.cast(weight).dtype == torch.bfloat16
    assert len(cache) == 0

"""The forward context of O2 and O3 as a context: nesting, errors, threads, backward, overrides."""

import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_mp.amp.forward_mode import HalfForwardMode


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def dtype(request):
    torch.manual_seed(3)
    return request.param


def is_stack_empty():
    return not torch.overrides.has_torch_function((torch.zeros(1),))


def block(dtype):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 2)
            self.out = nn.Linear(8, 8)

        def forward(self, x):
            y = self.norm(x)
            y = self.attention(y, y, y, need_weights=False)[0]
            return self.out(y + torch.ones(8)) + F.mse_loss(y, x).to(x.dtype)

    model = Block().to(dtype)
    model.norm.float()
    return model


def gradients(model, x, run, backward):
    model.zero_grad()
    x = x.clone().requires_grad_()
    with HalfForwardMode(x.dtype):
        loss = F.mse_loss(run(model, x), torch.zeros(x.shape))
        return backward(loss, [x, *model.parameters()])


def by_method(loss, leaves):
    loss.backward()
    return [leaf.grad for leaf in leaves]


def by_function(loss, leaves):
    torch.autograd.backward([loss])
    return [leaf.grad for leaf in leaves]


def by_grad(loss, leaves):
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize(
    ("use_reentrant", "backward"),
    [(True, by_method), (True, by_function)]
    + [(False, backward) for backward in (by_method, by_function, by_grad)],
)
def test_checkpointing_changes_no_gradient(use_reentrant, backward, dtype):
    model, x = block(dtype), torch.randn(5, 3, 8).to(dtype)
    plain = gradients(model, x, lambda m, x: m(x), by_method)
    again = gradients(
        model, x, lambda m, x: checkpoint(m, x, use_reentrant=use_reentrant), backward
    )
    for expected, grad in zip(plain, again, strict=True):
        assert expected is not None
        assert torch.equal(expected, grad)


def test_mode_is_on_in_backward_and_once_per_level(dtype):
    x = torch.randn(5, 7).to(dtype).requires_grad_()
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *grad_outputs):
            seen.append(F.mse_loss(grad_outputs[0], grad_outputs[0]).dtype)
            return grad_outputs[0]

    mode = HalfForwardMode(dtype)
    with mode:
        Probe.apply(x).sum().backward(retain_graph=True)
    Probe.apply(x).sum().backward()
    assert seen == [torch.float32, dtype]
    assert is_stack_empty()


@pytest.mark.parametrize("is_same_instance", [True, False])
def test_nested_contexts(is_same_instance, dtype):
    model, x = block(dtype), torch.randn(5, 3, 8).to(dtype)
    mode = HalfForwardMode(dtype)
    inner = mode if is_same_instance else HalfForwardMode(dtype)
    with mode:
        once = model(x)
        with inner:
            twice = model(x)
            loss = F.cross_entropy(twice.flatten(0, 1), torch.zeros(15, dtype=torch.long))
            loss.backward()
        assert F.mse_loss(x, x).dtype == torch.float32
    assert torch.equal(once, twice)
    assert loss.dtype == torch.float32
    assert is_stack_empty()


@pytest.mark.parametrize(
    "fail",
    [
        lambda x: x @ torch.ones(3, 3),
        lambda x: nn.MultiheadAttention(8, 2)(x, x, x, attn_mask=torch.zeros(2, 2)),
        lambda x: x.sum().backward(gradient=torch.ones(3)),
        lambda x: F.triplet_margin_with_distance_loss(
            x, x, x, distance_function=lambda a, b: a / (1 // 0)
        ),
    ],
    ids=["matmul", "attention", "backward", "callback"],
)
def test_exceptions_leave_nothing_behind(fail, dtype):
    x = torch.randn(5, 3, 8).to(dtype).requires_grad_()
    with pytest.raises((RuntimeError, ZeroDivisionError)), HalfForwardMode(dtype):
        fail(x)
    assert is_stack_empty()
    assert F.mse_loss(x, x).dtype == dtype


def test_threads_have_their_own_context(dtype):
    mode, dtypes = HalfForwardMode(dtype), {}
    x = torch.randn(5, 7).to(dtype)

    def outside():
        dtypes["outside"] = F.mse_loss(x, x).dtype
        with mode:
            dtypes["inside"] = F.mse_loss(x, x).dtype

    with mode:
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        assert F.mse_loss(x, x).dtype == torch.float32
    assert dtypes == {"outside": dtype, "inside": torch.float32}


def test_pickles(dtype):
    mode = pickle.loads(pickle.dumps(HalfForwardMode(dtype)))
    x = torch.randn(5, 7).to(dtype)
    with mode:
        assert F.mse_loss(x, x).dtype == torch.float32


class Tagged(torch.Tensor):
    """A tensor subclass that counts what it is asked."""

    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


NOTHING: list[Any] = [None] * 10


class Foreign:
    """No tensor at all, with overrides of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func.__name__


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.linear(x, torch.ones(3, 7)),
        lambda x: F.layer_norm(x, (7,), torch.ones(7)),
        lambda x: F.mse_loss(x, x),
        lambda x: F.cross_entropy(x, torch.arange(5)),
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ],
    ids=["linear", "layer_norm", "mse_loss", "cross_entropy", "attention"],
)
def test_subclasses_are_asked(call, dtype):
    Tagged.asked.clear()
    x = torch.randn(5, 7).to(dtype).as_subclass(Tagged)
    with HalfForwardMode(dtype):
        out = call(x)
    assert isinstance(out, Tagged)
    assert Tagged.asked


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: F.linear(x, torch.ones(3, 7)), "linear"),
        (lambda x: F.layer_norm(x, (7,), torch.ones(7)), "layer_norm"),
        (lambda x: F.cross_entropy(x, torch.arange(5)), "cross_entropy"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "scaled_dot_product_attention"),
        (lambda x: F.local_response_norm(x, 2), "local_response_norm"),
        (lambda x: F.multi_head_attention_forward(x, x, x, *NOTHING), None),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_foreign_classes_are_asked(call, name, dtype):
    with HalfForwardMode(dtype):
        assert call(Foreign()) == (name or "multi_head_attention_forward")


@pytest.mark.parametrize("value", [torch.float32, torch.float64, torch.int8])
def test_only_half_dtypes(value):
    with pytest.raises(
        ValueError, match=rf"dtype = {value}; allowed: torch.float16, torch.bfloat16"
    ):
        HalfForwardMode(value)

"""What a region of native casts does, and on which devices."""

import pickle
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from support.native import native_casts_removed, requires_native  # noqa: F401
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from lightning_mp.amp.native_casts import (
    NativeCasts,
    native_disabled,
    native_is_active,
    native_status,
)
from lightning_mp.amp.native_installation import INSTALLATION

pytestmark = requires_native

HALVES = [torch.bfloat16, torch.float16]


def cpu_casts(half: torch.dtype = torch.bfloat16) -> NativeCasts:
    return NativeCasts(half, ("cpu",))


def test_in_place_on_half_is_refused_with_advice():
    x = torch.rand(7).bfloat16()
    with (
        cpu_casts().context(),
        pytest.raises(
            NotImplementedError,
            match=r"aten::exp_ on half under O1; .*form that returns a new tensor",
        ),
    ):
        x.exp_()


def test_what_is_left_alone():
    x = torch.rand(3, 3)
    half = x.bfloat16()
    with cpu_casts().context():
        assert torch.exp(x.double()).dtype is (x.double() @ x.double()).dtype is torch.float64
        assert torch.exp(x.to(torch.complex64)).dtype is torch.complex64
        assert x.long().sum().dtype is torch.int64
        assert torch.sum(half, dtype=torch.bfloat16).dtype is torch.bfloat16
        assert torch.exp(half, out=torch.empty(3, 3).bfloat16()).dtype is torch.bfloat16
        assert half.cumsum_(0, dtype=torch.bfloat16).dtype is torch.bfloat16
        assert torch.relu(half).dtype is torch.bfloat16


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind, half):
    torch.manual_seed(7)
    layer = kind(5, 7, num_layers=2, batch_first=True, bidirectional=True)
    sequences = torch.randn(3, 4, 5)
    packed = nn.utils.rnn.pack_padded_sequence(sequences, torch.tensor([4, 2, 1]), batch_first=True)
    for data in (sequences, packed):
        layer.zero_grad()
        with cpu_casts(half).context():
            output = layer(data)[0]
        values = output if isinstance(output, Tensor) else output.data
        assert values.dtype is half
        values.float().sum().backward()
        assert all(weight.grad.dtype is torch.float32 for weight in layer.parameters())
        assert all(weight.grad.abs().sum() > 0 for weight in layer.parameters())


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind, half):
    cell = kind(5, 7)
    with cpu_casts(half).context():
        state = cell(torch.randn(3, 5))
    assert all(leaf.dtype is half for leaf in tree_leaves(state))


class Block(nn.Module):
    """Runs functions of every policy, and notes the dtypes that it sees."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(13, 13), nn.LayerNorm(13)
        self.seen = []

    def forward(self, x):
        hidden = self.linear(x)
        scores = torch.softmax(torch.exp(hidden * 0.1), -1) * hidden.sum(-1, keepdim=True)
        self.seen.append((hidden.dtype, scores.dtype))
        return self.norm(scores) + torch.log(hidden.abs() + 1)


def gradients_of(block, x, half, use_reentrant, in_thread):
    block.zero_grad()
    leaf = x.clone().requires_grad_()
    with cpu_casts(half).context():
        if use_reentrant is None:
            loss = block(leaf).sum()
        else:
            loss = checkpoint(block, leaf, use_reentrant=use_reentrant).sum()
    if in_thread:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    else:
        loss.backward()
    return [leaf.grad, *(weight.grad.clone() for weight in block.parameters())]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_changes_no_bit(half, use_reentrant, in_thread):
    torch.manual_seed(7)
    block, x = Block(), torch.randn(3, 13)
    plain = gradients_of(block, x, half, None, False)
    block.seen.clear()
    again = gradients_of(block, x, half, use_reentrant, in_thread)
    assert block.seen == [(half, torch.float32)] * 2
    for first, second in zip(plain, again, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_stock_forward_stays_stock_when_its_backward_runs_in_a_region():
    block, leaf = Block(), torch.randn(3, 13, requires_grad=True)
    casts = cpu_casts()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = checkpoint(block, leaf, use_reentrant=False).sum()
    with casts.context():
        loss.backward()
    assert block.seen[0] == block.seen[1]
    assert block.seen[0][1] is torch.bfloat16


def test_a_weight_is_cast_anew_after_a_step_within_a_region():
    weight = nn.Parameter(torch.rand(7, 7))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    x = torch.rand(3, 7)
    with cpu_casts().context():
        before = F.linear(x, weight)
        before.sum().backward()
        optimizer.step()
        after = F.linear(x, weight)
    torch.testing.assert_close(
        after, F.linear(x.bfloat16(), weight.detach().bfloat16()), rtol=0, atol=0
    )
    assert not torch.equal(before, after)


def test_a_weight_is_cast_once_per_outermost_region():
    weight, x = nn.Parameter(torch.rand(7, 7)), torch.rand(3, 7)
    casts = cpu_casts()
    with casts.context():
        with casts.context():
            before = torch.mv(weight, x[0])
        with torch.no_grad():
            weight.add_(1)
        assert torch.equal(torch.mv(weight, x[0]), before) is (torch.__version__ >= "2.11")
    with casts.context():
        assert not torch.equal(torch.mv(weight, x[0]), before)


def test_regions_nest_and_can_be_disabled():
    casts, x = cpu_casts(), torch.rand(3, 3)
    assert not native_is_active()
    with casts.context(), casts.context():
        assert native_is_active()
        with native_disabled():
            assert not native_is_active()
            assert (x @ x).dtype is torch.float32
            assert torch.exp(x.bfloat16()).dtype is torch.bfloat16
            with casts.context():
                assert (x @ x).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert not native_is_active()
        with torch.autocast("cpu", dtype=torch.float16):
            assert (x @ x).dtype is torch.float16
            assert torch.exp(x.half()).dtype is torch.float32
        assert (x @ x).dtype is torch.bfloat16
    with native_disabled():
        assert (x @ x).dtype is torch.float32


def cpu_casts_region():
    return cpu_casts().context()


@contextmanager
def disabled_in_region():
    with cpu_casts().context(), native_disabled():
        yield


@pytest.mark.parametrize("region", [cpu_casts_region, disabled_in_region])
def test_regions_end_on_errors(region):
    with pytest.raises(KeyError), region():
        raise KeyError
    assert not native_is_active()
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("ipu")
    assert torch.get_autocast_dtype("cuda") is not torch.float64


def test_a_region_belongs_to_its_thread():
    found = []
    with cpu_casts().context():
        thread = threading.Thread(target=lambda: found.append(native_is_active()))
        thread.start()
        thread.join()
    assert found == [False]


def test_custom_autograd_functions_and_transforms():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype is torch.float32
            assert not native_is_active()
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return grad * 2

    x = torch.rand(3, 7, 7)
    with cpu_casts().context():
        leaf = x.bfloat16().requires_grad_()
        Double.apply(leaf).sum().backward()
        assert leaf.grad is not None
        for function in (torch.exp, lambda t: t.softmax(-1), lambda t: F.layer_norm(t, (7,))):
            eager = function(x[0].bfloat16()).dtype
            assert torch.vmap(function)(x.bfloat16()).dtype is eager is torch.float32
        (gradient,) = torch.autograd.grad(torch.exp(leaf @ leaf).sum(), leaf, create_graph=True)
        assert gradient.requires_grad
        with torch.inference_mode():
            assert (x @ x).dtype is torch.bfloat16


def test_casts_travel_by_pickle():
    copy = pickle.loads(pickle.dumps(cpu_casts(torch.float16)))
    with copy.context():
        assert (torch.rand(3, 3) @ torch.rand(3, 3)).dtype is torch.float16


@pytest.mark.parametrize(
    ("device_types", "message"),
    [
        (("cpu", "cuda"), r"device types = cpu, cuda; native casts take one"),
        ((), r"device types = none; native casts take one"),
        (("meta",), r"device type = meta; native casts have kernels for cpu, cuda, privateuse1"),
        (("mps",), r"device type = mps; native casts have kernels for"),
        (("privateuseone",), r"device type = privateuseone; its module takes no part"),
    ],
)
def test_devices_that_are_refused(device_types, message):
    INSTALLATION.uninstall()
    is_available, reason = native_status(device_types)
    assert not is_available
    with pytest.raises(RuntimeError, match=message):
        NativeCasts(torch.bfloat16, device_types)
    assert reason in message.replace(r"\(", "(") or message.split(";")[0] in reason
    assert INSTALLATION.carriers == {}


def test_a_device_of_another_library_needs_autocast(monkeypatch):
    backend = SimpleNamespace(get_amp_supported_dtype=lambda: [torch.bfloat16])
    monkeypatch.setattr(torch, "privateuseone", backend, raising=False)
    assert "registers no fallback for autocast" in native_status(("privateuseone",))[1]
    monkeypatch.setattr(torch._C, "_dispatch_has_backend_fallback", lambda key: True)
    assert native_status(("privateuseone", "privateuseone"))[0]
    with pytest.raises(ValueError, match=r"float16; allowed on privateuseone: torch\.bfloat16;"):
        NativeCasts(torch.float16, ("privateuseone",))


def test_half_dtype_is_checked():
    with pytest.raises(ValueError, match=r"half_dtype = torch\.float32; allowed: torch\.float16"):
        NativeCasts(torch.float32, ("cpu",))


def test_kernels_for_cuda_can_be_installed_without_a_card():
    INSTALLATION.uninstall()
    casts = NativeCasts(torch.float16, ("cuda",))
    assert INSTALLATION.carriers == {"cuda": "cpu"}
    assert casts.device_type == "cuda"
    INSTALLATION.uninstall()


def test_what_the_mark_relies_on_in_torch():
    """No build has kernels for the guard's device, and checkpointing restores both states."""
    assert torch.amp.is_autocast_available("ipu")
    assert torch._C._dispatch_get_registrations_for_dispatch_key("AutocastIPU") == []
    cpu_casts()
    found = []

    def note(x):
        found.append((torch.get_autocast_dtype("cuda"), torch.get_autocast_dtype("cpu")))
        return x * x

    for use_reentrant in (False, True):
        leaf = torch.ones(3, requires_grad=True)
        with (
            torch.autocast("cuda", dtype=torch.float64, enabled=False),
            torch.autocast("cpu", dtype=torch.float16),
        ):
            loss = checkpoint(note, leaf, use_reentrant=use_reentrant).sum()
        loss.backward()
    assert found == [(torch.float64, torch.float16)] * 4

"""Every table of the forward context: functions by dtype, against FP32."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_mp.amp import forward_tables as tables
from lightning_mp.amp.forward_mode import HalfForwardMode


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def dtype(request):
    torch.manual_seed(3)
    return request.param


def assert_near(half, full, dtype, factor=8):
    eps = torch.finfo(dtype).eps
    scale = full.abs().max().clamp(min=1).item()
    torch.testing.assert_close(half.float(), full, rtol=factor * eps, atol=factor * eps * scale)


# -- losses -----------------------------------------------------------------------------------

LABELS = torch.tensor([2, 0, 6, 1, 3])
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])


def signs_like(x):
    return SIGNS.to(x.dtype)


# name -> call on predictions (5, 7); every float operand has the predictions' dtype
LOSS_CALLS = {
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), pos_weight=torch.ones(7, dtype=x.dtype)
    ),
    "cosine_embedding_loss": lambda x, y: F.cosine_embedding_loss(x, y, SIGNS),
    "cross_entropy": lambda x, y: F.cross_entropy(x, LABELS),
    "ctc_loss": lambda x, y: F.ctc_loss(
        x.unsqueeze(1).log_softmax(-1), LABELS[None, 3:], torch.tensor([5]), torch.tensor([2])
    ),
    "gaussian_nll_loss": lambda x, y: F.gaussian_nll_loss(x, y, y.exp()),
    "hinge_embedding_loss": lambda x, y: F.hinge_embedding_loss(x, y.sign()),
    "huber_loss": F.huber_loss,
    "kl_div": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "l1_loss": F.l1_loss,
    "margin_ranking_loss": lambda x, y: F.margin_ranking_loss(x[:, 0], y[:, 0], signs_like(x)),
    "mse_loss": F.mse_loss,
    "multi_margin_loss": lambda x, y: F.multi_margin_loss(x, LABELS),
    "multilabel_margin_loss": lambda x, y: F.multilabel_margin_loss(
        x, LABELS[:, None].expand(5, 7).contiguous()
    ),
    "multilabel_soft_margin_loss": lambda x, y: F.multilabel_soft_margin_loss(x, y.sigmoid()),
    "nll_loss": lambda x, y: F.nll_loss(x.log_softmax(1), LABELS),
    "poisson_nll_loss": lambda x, y: F.poisson_nll_loss(x, y.exp()),
    "smooth_l1_loss": F.smooth_l1_loss,
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "triplet_margin_loss": lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)),
    "triplet_margin_with_distance_loss": lambda x, y: F.triplet_margin_with_distance_loss(
        x, y, y.flip(0)
    ),
}


def test_every_loss_of_torch_is_known():
    names = {
        name
        for name in dir(F)
        if not name.startswith("_") and (name.endswith("_loss") or "entropy" in name)
    } | {"kl_div"}
    known = tables.LOSSES | tables.LOSSES_WITH_CALLBACK | tables.SAME_DTYPE_COMPOSITE
    missing = {n for n in names if getattr(F, n) not in known | {F.cross_entropy}}
    assert not missing
    assert names - set(LOSS_CALLS) <= {"linear_cross_entropy"}


@pytest.mark.parametrize("name", LOSS_CALLS)
def test_loss_of_half_predictions_is_float(name, dtype):
    call = LOSS_CALLS[name]
    x, y = torch.randn(5, 7).to(dtype).requires_grad_(), torch.randn(5, 7).to(dtype)
    with HalfForwardMode(dtype):
        loss = call(x, y)
        loss.backward()
    assert loss.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert_near(loss, call(x.detach().float(), y.float()), dtype)


@pytest.mark.parametrize("name", LOSS_CALLS)
def test_loss_of_float_predictions_is_untouched(name, dtype):
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    with HalfForwardMode(dtype):
        loss = LOSS_CALLS[name](x, y)
    assert torch.equal(loss, LOSS_CALLS[name](x, y))


def test_loss_accepts_mixed_operands_by_keyword(dtype):
    x, y = torch.randn(5, 7).to(dtype), torch.randn(5, 7)
    with HalfForwardMode(dtype):
        loss = F.mse_loss(input=x, target=y)
        entropy = F.cross_entropy(input=x, target=LABELS)
    assert torch.equal(loss, F.mse_loss(x.float(), y))
    assert torch.equal(entropy, F.cross_entropy(x.float(), LABELS))


def test_distance_function_with_half_weights(dtype):
    distance = nn.Bilinear(7, 7, 1).to(dtype)
    a, p, n = (torch.randn(5, 7).to(dtype) for _ in range(3))
    loss_function = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda u, v: distance(u, v).squeeze(-1)
    )
    with HalfForwardMode(dtype):
        loss = loss_function(a, p, n)
        loss.backward()
    assert distance.weight.grad is not None
    assert distance.weight.grad.dtype == dtype


# -- one dtype --------------------------------------------------------------------------------


def weights(dtype, *shapes):
    return [torch.randn(shape).to(dtype) for shape in shapes]


# name -> (call, shapes of its tensors); the first is FP32, the others half, and the reverse
SAME_DTYPE_CALLS = {
    "linear": (F.linear, [(5, 7), (3, 7), (3,)]),
    "bilinear": (F.bilinear, [(5, 7), (5, 3), (2, 7, 3)]),
    "operator": (lambda a, b: a @ b, [(5, 7), (7, 3)]),
    "rmatmul": (lambda a, b: b.__rmatmul__(a), [(5, 7), (7, 3)]),
    "matmul": (torch.matmul, [(2, 5, 7), (7, 3)]),
    "mm": (torch.mm, [(5, 7), (7, 3)]),
    "method_mm": (torch.Tensor.mm, [(5, 7), (7, 3)]),
    "bmm": (torch.bmm, [(2, 5, 7), (2, 7, 3)]),
    "mv": (torch.mv, [(5, 7), (7,)]),
    "dot": (torch.dot, [(7,), (7,)]),
    "inner": (torch.inner, [(5, 7), (3, 7)]),
    "addmm": (torch.addmm, [(5, 3), (5, 7), (7, 3)]),
    "addmv": (torch.addmv, [(5,), (5, 7), (7,)]),
    "addr": (torch.addr, [(5, 7), (5,), (7,)]),
    "baddbmm": (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "addbmm": (torch.addbmm, [(5, 3), (2, 5, 7), (2, 7, 3)]),
    "chain": (lambda *m: torch.linalg.multi_dot(m), [(5, 7), (7, 3), (3, 2)]),
    "vecdot": (torch.linalg.vecdot, [(5, 7), (5, 7)]),
    "einsum": (lambda a, b: torch.einsum("bij,jk->bik", a, b), [(2, 5, 7), (7, 3)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), [(2, 5, 7), (7, 3)]),
    "prelu": (F.prelu, [(5, 7), (7,)]),
    "conv1d": (F.conv1d, [(2, 3, 11), (5, 3, 3), (5,)]),
    "conv2d": (F.conv2d, [(2, 3, 9, 7), (5, 3, 3, 3), (5,)]),
    "conv3d": (F.conv3d, [(1, 3, 5, 5, 5), (2, 3, 3, 3, 3)]),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 3, 11), (3, 5, 3)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 3, 7, 5), (3, 5, 3, 3)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)]),
    "embedding_bag": (
        lambda w, s: F.embedding_bag(
            torch.tensor([[1, 4, 2]]), w, per_sample_weights=s, mode="sum"
        ),
        [(7, 5), (1, 3)],
    ),
}


@pytest.mark.parametrize("is_first_half", [False, True], ids=["float_first", "half_first"])
@pytest.mark.parametrize("name", SAME_DTYPE_CALLS)
def test_float_operands_are_rounded_to_half(name, is_first_half, dtype):
    call, shapes = SAME_DTYPE_CALLS[name]
    first, *others = [torch.randn(shape).requires_grad_() for shape in shapes]
    mixed = [
        first.to(dtype) if is_first_half else first,
        *(t if is_first_half else t.to(dtype) for t in others),
    ]
    with HalfForwardMode(dtype):
        out = call(*mixed)
        out.float().sum().backward()
    assert out.dtype == dtype
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in (first, *others))
    assert_near(out, call(*(t.detach().to(dtype).float() for t in (first, *others))), dtype)


@pytest.mark.parametrize("operands", [torch.float32, torch.float64, "half"], ids=str)
@pytest.mark.parametrize("name", SAME_DTYPE_CALLS)
def test_operands_of_one_dtype_are_untouched(name, operands, dtype):
    call, shapes = SAME_DTYPE_CALLS[name]
    tensors = weights(dtype if operands == "half" else operands, *shapes)
    with HalfForwardMode(dtype):
        out = call(*tensors)
    expected = call(*tensors)
    assert out.dtype == expected.dtype
    if name == "attention" and operands == "half":
        assert_near(out, expected.float(), dtype)
    else:
        assert torch.equal(out, expected)


def test_float64_operand_is_torchs_error(dtype):
    x, w = torch.randn(5, 7, dtype=torch.float64), torch.randn(3, 7).to(dtype)
    with HalfForwardMode(dtype), pytest.raises(RuntimeError, match="dtype"):
        F.linear(x, w)


def test_in_place_keeps_the_destination(dtype):
    a, b = torch.randn(5, 7), torch.randn(7, 3).to(dtype)
    half = torch.zeros(5, 3, dtype=dtype)
    with HalfForwardMode(dtype):
        assert half.addmm_(a, b) is half
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.zeros(5, 3).addmm_(b.new_ones(5, 7), b)
    assert_near(half, a.to(dtype).float() @ b.float(), dtype)


def test_out_is_never_replaced(dtype):
    a, b = torch.randn(5, 7), torch.randn(7, 3).to(dtype)
    out = torch.empty(5, 3, dtype=dtype)
    with HalfForwardMode(dtype):
        assert torch.mm(a, b, out=out) is out
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(a, b, out=torch.empty(5, 3))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layer_with_a_float_state(kind, dtype):
    layer = getattr(nn, kind)(5, 7, num_layers=2, bidirectional=True)
    half = copy.deepcopy(layer).to(dtype)
    x, state = torch.randn(11, 3, 5), torch.zeros(4, 3, 7)
    states = (state, state) if kind == "LSTM" else state
    with HalfForwardMode(dtype):
        out, _ = half(x.to(dtype), states)
        out.float().sum().backward()
    assert out.dtype == dtype
    assert all(p.grad is not None and p.grad.dtype == dtype for p in half.parameters())
    assert_near(out, layer(x, states)[0], dtype)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_recurrent_cell_with_a_float_input(kind, dtype):
    cell = getattr(nn, kind)(5, 7)
    half = copy.deepcopy(cell).to(dtype)
    x = torch.randn(3, 5)
    with HalfForwardMode(dtype):
        out = half(x)
    out, expected = (o[0] if isinstance(o, tuple) else o for o in (out, cell(x)))
    assert out.dtype == dtype
    assert_near(out, expected, dtype)


# -- norms ------------------------------------------------------------------------------------

# name -> layer for an input of (5, 6, 7, 3)
NORMS = {
    "batch_norm": lambda: nn.BatchNorm2d(6),
    "batch_norm_no_stats": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "group_norm": lambda: nn.GroupNorm(3, 6),
    "instance_norm": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
    "layer_norm": lambda: nn.LayerNorm([7, 3]),
    "layer_norm_no_bias": lambda: nn.LayerNorm(3, bias=False),
    "rms_norm": lambda: nn.RMSNorm(3),
}


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "cast"])
@pytest.mark.parametrize("name", NORMS)
def test_float_norm_takes_half_activations(name, is_native, dtype, monkeypatch):
    if not is_native:
        monkeypatch.setattr(tables, "MIXED_NORMS", {})
    layer, reference = NORMS[name](), NORMS[name]()
    x = torch.randn(5, 6, 7, 3).to(dtype).requires_grad_()
    with HalfForwardMode(dtype):
        out = layer(x)
        out.float().square().sum().backward()
    y = x.detach().float().requires_grad_()
    expected = reference(y)
    expected.square().sum().backward()
    assert out.dtype == dtype
    assert_near(out, expected, dtype)
    assert x.grad is not None
    assert x.grad.dtype == dtype
    for half, full in zip(layer.parameters(), reference.parameters(), strict=True):
        assert half.grad is not None
        assert half.grad.dtype == torch.float32
        assert_near(half.grad, full.grad, dtype, factor=16)
    for half, full in zip(layer.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(half, full)


@pytest.mark.parametrize("name", NORMS)
def test_float_norm_of_float_is_untouched(name, dtype):
    x = torch.randn(5, 6, 7, 3)
    layer, reference = NORMS[name](), NORMS[name]()
    with HalfForwardMode(dtype):
        assert torch.equal(layer(x), reference(x))


@pytest.mark.parametrize("name", NORMS)
def test_half_norm_takes_float_activations(name, dtype):
    x = torch.randn(5, 6, 7, 3)
    layer = NORMS[name]().to(dtype)
    with HalfForwardMode(dtype):
        out = layer(x)
    assert out.dtype == dtype
    assert_near(out, NORMS[name]()(x), dtype)


def test_builtin_norm_by_keyword(dtype):
    x, weight = torch.randn(5, 7).to(dtype), torch.ones(7)
    with HalfForwardMode(dtype):
        out = torch.layer_norm(weight=weight, input=x, normalized_shape=(7,))
        rms = torch.rms_norm(x, (7,), weight)
    assert out.dtype == rms.dtype == dtype


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.local_response_norm(x, 2),
        lambda x: F.grid_sample(x, torch.zeros(2, 5, 5, 2), align_corners=False),
        lambda x: torch.cdist(x, x),
    ],
    ids=["local_response_norm", "grid_sample", "cdist"],
)
def test_missing_half_kernels_run_in_float(call, dtype):
    x = torch.randn(2, 6, 7, 3).to(dtype).requires_grad_()
    with HalfForwardMode(dtype):
        out = call(x)
        out.float().sum().backward()
        untouched = call(x.detach().float())
    assert out.dtype == dtype
    assert x.grad is not None
    assert torch.equal(out, untouched.to(dtype))


def test_activations_stay_half(dtype):
    x = torch.randn(5, 7).to(dtype)
    with HalfForwardMode(dtype):
        outs = [x.exp(), x.softmax(1), x.sum(), F.gelu(x), x.pow(2), F.normalize(x), x.cumsum(0)]
    assert all(out.dtype == dtype for out in outs)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has none")
def test_linear_cross_entropy_is_float(dtype):
    x, w = torch.randn(5, 7).to(dtype), torch.randn(9, 7)
    with HalfForwardMode(dtype):
        loss = F.linear_cross_entropy(x, w, LABELS)
    assert loss.dtype == torch.float32
    assert_near(loss, F.cross_entropy(x.float() @ w.T, LABELS), dtype)

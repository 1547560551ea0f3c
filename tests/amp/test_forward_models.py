"""The forward context of O2 and O3 on attention and on whole models, against FP32."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from lightning_mp.amp import forward_mode
from lightning_mp.amp.forward_mode import HalfForwardMode

NORM_LAYERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def dtype(request):
    torch.manual_seed(3)
    return request.param


class Calls(TorchFunctionMode):
    """Records name and tensor dtypes of the calls that come out of the mode above it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        dtypes = [a.dtype for a in args if type(a) in (torch.Tensor, nn.Parameter)]
        self.calls.append((func.__name__, dtypes))
        return func(*args, **(kwargs or {}))


def to_half(module, dtype):
    module = copy.deepcopy(module).to(dtype)
    for layer in module.modules():
        if isinstance(layer, NORM_LAYERS):
            layer.float()
    return module


def assert_near(half, full, dtype, factor=8):
    eps = torch.finfo(dtype).eps
    scale = full.abs().max().clamp(min=1).item()
    torch.testing.assert_close(half.float(), full, rtol=factor * eps, atol=factor * eps * scale)


# -- attention --------------------------------------------------------------------------------


@pytest.mark.parametrize("has_matrix_unit", [False, True], ids=["slow_half", "fast_half"])
def test_cpu_attention_dtype(has_matrix_unit, dtype, monkeypatch):
    monkeypatch.setattr(forward_mode, "_has_matrix_unit", lambda dtype: has_matrix_unit)
    q, k, v = (torch.randn(2, 3, 5, 8).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.zeros(5, 5)
    with Calls() as record, HalfForwardMode(dtype):
        out = F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)
        F.scaled_dot_product_attention(q, k, v)
    expected = dtype if has_matrix_unit else torch.float32
    assert ("scaled_dot_product_attention", [expected] * 3) in record.calls
    assert out.dtype == dtype
    out.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == dtype


def test_gate_is_evaluated_once(dtype, monkeypatch):
    seen = []
    monkeypatch.setattr(forward_mode, "_has_matrix_unit", lambda dtype: bool(seen.append(dtype)))
    q = torch.randn(1, 1, 5, 8).to(dtype)
    with HalfForwardMode(dtype):
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q, q, q)
    assert seen == [dtype]


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_reaches_the_rules_inside(need_weights, dtype, monkeypatch):
    monkeypatch.setattr(forward_mode, "_has_matrix_unit", lambda dtype: False)
    layer = nn.MultiheadAttention(8, 2)
    half = to_half(layer, dtype)
    x, mask = torch.randn(5, 3, 8), nn.Transformer.generate_square_subsequent_mask(5)
    with Calls() as record, HalfForwardMode(dtype):
        out, _ = half(x, x.to(dtype), x, attn_mask=mask, need_weights=need_weights)
    assert out.dtype == dtype
    assert_near(out, layer(x, x, x, attn_mask=mask)[0], dtype)
    attention = ("scaled_dot_product_attention", [torch.float32] * 4)  # the mask is the fourth
    assert (attention in record.calls) is not need_weights


# -- models -----------------------------------------------------------------------------------


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.0)
        )
        self.head = nn.Linear(7, 5)

    def forward(self, x):
        x = self.features(x)
        noise = torch.zeros(x.shape)  # FP32, as torch.randn made in a training_step
        return self.head((x + noise).mean((2, 3)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 17, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        x = self.norm(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))
        return (x @ self.embedding.weight.t()).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 7, batch_first=True)
        self.head = nn.Linear(7, 5)

    def forward(self, x):
        state = torch.zeros(1, len(x), 7), torch.zeros(1, len(x), 7)
        return self.head(self.lstm(x, state)[0][:, -1])


MODELS = {
    "cnn": (Cnn, lambda: torch.randn(7, 3, 11, 13), 7, 5),
    "tied_transformer": (Tied, lambda: torch.randint(0, 13, (3, 7)), 21, 13),
    "lstm": (Recurrent, lambda: torch.randn(7, 11, 3), 7, 5),
}


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("name", MODELS)
def test_model_trains_as_in_float(name, level, dtype):
    build, make_input, num_targets, num_classes = MODELS[name]
    model, x = build(), make_input()
    half = to_half(model, dtype) if level == "O2" else copy.deepcopy(model).to(dtype)
    target = torch.randint(0, num_classes, (num_targets,))
    with HalfForwardMode(dtype):
        out = half(x.to(dtype) if x.is_floating_point() else x)
        loss = F.cross_entropy(out, target)
        loss.backward()
    expected = F.cross_entropy(model(x), target)
    expected.backward()
    assert out.dtype == dtype
    assert loss.dtype == torch.float32
    assert_near(loss, expected.detach(), dtype)
    for half_parameter, parameter in zip(half.parameters(), model.parameters(), strict=True):
        assert half_parameter.grad is not None
        assert parameter.grad is not None
        assert half_parameter.grad.dtype == half_parameter.dtype
        assert_near(half_parameter.grad, parameter.grad, dtype, factor=32)


@pytest.mark.parametrize("is_masked", [False, True])
def test_transformer_encoder_in_eval(is_masked, dtype):
    layer = nn.TransformerEncoderLayer(8, 2, 17, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    half = to_half(model, dtype)
    x, mask = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 3:] = is_masked
    with torch.no_grad(), HalfForwardMode(dtype):
        out = half(x.to(dtype), src_key_padding_mask=mask)
    with torch.no_grad():
        # The float encoder must not take the nested-tensor path either: it zeroes padded places.
        expected = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        expected.load_state_dict(model.state_dict())
        reference = expected(x, src_key_padding_mask=mask)
    assert out.dtype == dtype
    is_kept = ~mask
    assert_near(out[is_kept], reference[is_kept], dtype, factor=16)


@pytest.mark.slow
def test_compiled_inside_the_mode(dtype):
    model = to_half(Cnn(), dtype)
    x, target = torch.randn(7, 3, 11, 13).to(dtype), torch.zeros(7, dtype=torch.long)

    def step(x, target):
        return F.cross_entropy(model(x), target)

    with HalfForwardMode(dtype):
        expected = step(x, target)
        loss = torch.compile(step, backend="eager")(x, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)

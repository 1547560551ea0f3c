"""O1 under torch.compile: regions around compiled code, in it, and hooks on compiled models."""

import pytest
import torch
from support.inductor import INDUCTOR
from support.o1_implementations import IMPLEMENTATIONS
from support.tolerances import HALF_STEP, HALF_TRAINING
from torch import nn
from torch.nn import functional as F

from lightning_mp.amp.function_cast_hooks import FunctionCastHooks
from lightning_mp.amp.function_cast_mode import FunctionCastMode
from lightning_mp.amp.function_casts import FunctionCasts, disable_casts

FP32 = torch.float32
X = torch.linspace(0, 1, 28).view(4, 7)
BACKENDS = ["eager", "aot_eager", INDUCTOR]

pytestmark = [
    # Dynamo asks every non-leaf tensor that goes into a graph for its gradient.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def half(request):
    torch.manual_seed(3)
    torch.compiler.reset()
    yield request.param
    torch.compiler.reset()


@pytest.fixture(params=IMPLEMENTATIONS)
def casts(request, half):
    return FunctionCasts(half, implementation=request.param, device_types=("cpu",))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(7, 6), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        hidden = self.layer(x)
        mixed = hidden + torch.ones(6)
        attended = self.attention(hidden[None], hidden[None], hidden[None], need_weights=False)[0]
        return {
            "hidden": hidden,
            "exp": torch.exp(hidden),
            "norm": self.norm(hidden),
            "mixed": mixed,
            "attended": attended,
            "pooled": F.lp_pool1d(hidden[None], 2.0, 2),
        }


def dtypes(output):
    return {name: item.dtype for name, item in output.items()}


def expected_dtypes(half):
    rest = dict.fromkeys(["exp", "norm", "mixed", "pooled"], FP32)
    return {"hidden": half, "attended": half, **rest}


@pytest.mark.parametrize("backend", BACKENDS)
def test_fullgraph_within_a_region_and_without(casts, half, backend):
    net = Net()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for _ in range(2):
        assert set(dtypes(compiled(X)).values()) == {FP32}
        with casts.context():
            output, plain = compiled(X), net(X)
            assert dtypes(output) == expected_dtypes(half)
            for name, item in output.items():
                torch.testing.assert_close(item, plain[name], **HALF_STEP)
            with disable_casts():
                assert set(dtypes(compiled(X)).values()) == {FP32}


@pytest.mark.parametrize("backend", BACKENDS)
def test_mode_within_compiled_code(half, backend):
    net, mode = Net(), FunctionCastMode(half)

    @torch.compile(backend=backend, fullgraph=True)
    def step(x):
        with mode:
            return net(x)

    assert dtypes(step(X)) == expected_dtypes(half)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_step(casts, backend):
    net = Net()

    def gradients(model):
        net.zero_grad()
        with casts.context():
            loss = model(X)["norm"].square().mul(X[:, :6]).sum()
            loss.backward()
        return [parameter.grad for parameter in (net.layer.weight, net.norm.weight)]

    expected = [grad.clone() for grad in gradients(net)]
    for grad, plain in zip(gradients(torch.compile(net, backend=backend)), expected, strict=True):
        assert grad.dtype == FP32
        torch.testing.assert_close(grad, plain, **HALF_TRAINING)


def compile_first(net, casts, backend):
    compiled = torch.compile(net, backend=backend)
    return compiled, FunctionCastHooks(compiled, casts)


def compile_after(net, casts, backend):
    hooks = FunctionCastHooks(net, casts)
    return torch.compile(net, backend=backend), hooks


def compile_in_place(net, casts, backend):
    hooks = FunctionCastHooks(net, casts)
    net.compile(backend=backend)
    return net, hooks


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("build", [compile_first, compile_after, compile_in_place])
def test_hooks(casts, half, build, backend):
    net = Net()
    with casts.context():
        expected = net(X)
    model, hooks = build(net, casts, backend)
    for _ in range(3):
        output = model(X)
        assert set(dtypes(output).values()) == {FP32}
        for name, item in output.items():
            torch.testing.assert_close(item, expected[name].float(), **HALF_STEP)
        assert torch.equal(output["hidden"], output["hidden"].to(half).float())
        with casts.context():
            assert dtypes(model(X)) == expected_dtypes(half)
    hooks.remove()
    output = model(X)["hidden"]
    assert not torch.equal(output, output.to(half).float())


def test_hooks_break_no_graph_within_a_region(casts, half):
    net = Net()
    FunctionCastHooks(net, casts)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with casts.context():
        assert dtypes(compiled(X)) == expected_dtypes(half)

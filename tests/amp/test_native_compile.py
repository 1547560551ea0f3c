"""Native casts and torch.compile: guards, graphs with the region inside, checkpointing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from support.inductor import INDUCTOR
from support.native import native_casts_removed, requires_native  # noqa: F401
from support.tolerances import HALF_STEP
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from torch.utils.checkpoint import checkpoint

from lightning_mp.amp.native_casts import NativeCasts, native_disabled
from lightning_mp.amp.native_installation import INSTALLATION
from lightning_mp.amp.op_lists import Policy

pytestmark = [
    requires_native,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


@pytest.fixture(autouse=True)
def no_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def casts(half: torch.dtype = torch.bfloat16) -> NativeCasts:
    return NativeCasts(half, ("cpu",))


def product_and_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    product = x @ x
    return product, torch.exp(product)


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_each_kind_of_region_has_its_own_graph(backend):
    num_compilations = 0
    compiler = lookup_backend(backend)

    def counting(graph, inputs):
        nonlocal num_compilations
        num_compilations += 1
        return compiler(graph, inputs)

    compiled = torch.compile(product_and_exp, backend=counting, fullgraph=True)
    fp32, bf16 = torch.float32, torch.bfloat16
    regions: dict[str, tuple[Callable[[], AbstractContextManager], list[torch.dtype]]] = {
        "none": (nullcontext, [fp32, fp32]),
        "stock": (lambda: torch.autocast("cpu", dtype=bf16), [bf16, bf16]),
        "native": (casts().context, [bf16, fp32]),
    }
    x = torch.rand(7, 7)
    for name in ("none", "stock", "native", "stock", "native", "none", "native"):
        region, dtypes = regions[name]
        with region():
            results, eager = compiled(x), product_and_exp(x)
        assert [value.dtype for value in results] == dtypes, name
        for value, expected in zip(results, eager, strict=True):
            torch.testing.assert_close(value, expected, **HALF_STEP)
    assert num_compilations == 3
    with casts(torch.float16).context():
        assert compiled(x)[0].dtype is torch.float16
    assert num_compilations == 4


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_the_region_may_be_inside_of_the_graph(backend):
    region = casts()

    def run(x):
        with region.context():
            product, exponential = product_and_exp(x)
            with native_disabled():
                plain = x @ x
        return product, exponential, plain

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    dtypes = [value.dtype for value in compiled(torch.rand(7, 7))]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("is_compiled_outside", [False, True])
def test_checkpointing_and_compilation_mix(is_compiled_outside):
    torch.manual_seed(7)
    block = nn.Sequential(nn.Linear(7, 7), nn.GELU(), nn.LayerNorm(7))
    x = torch.rand(3, 7)

    def loss_of(value):
        return torch.exp(block(value)).sum()

    def gradients(run):
        block.zero_grad()
        with casts().context():
            loss = run(x)
        loss.backward()
        return [weight.grad.clone() for weight in block.parameters()]

    def compiled(function):
        return torch.compile(function, backend="aot_eager")

    def checkpointed(function):
        return lambda value: checkpoint(function, value, use_reentrant=False)

    plain = gradients(loss_of)
    if is_compiled_outside:
        mixed = gradients(compiled(checkpointed(loss_of)))
    else:
        mixed = gradients(checkpointed(compiled(loss_of)))
    for first, second in zip(plain, mixed, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_policy_registered_later_reaches_compiled_code():
    region, x = casts(), torch.rand(7).bfloat16()
    compiled = torch.compile(torch.sinc, backend="aot_eager")
    with region.context():
        assert compiled(x).dtype is torch.bfloat16
        INSTALLATION.register("aten::sinc", Policy.FP32)
        assert compiled(x).dtype is torch.float32


def test_export_records_the_casts():
    region = casts()

    class Model(nn.Module):
        def forward(self, x):
            with region.context():
                return product_and_exp(x)

    program = torch.export.export(Model(), (torch.rand(7, 7),))
    product, exponential = program.module()(torch.rand(7, 7))
    assert (product.dtype, exponential.dtype) == (torch.bfloat16, torch.float32)

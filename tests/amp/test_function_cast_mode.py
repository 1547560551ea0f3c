"""The function mode of O1: every name of the table, and what no table says."""

from types import SimpleNamespace

import pytest
import torch
from support.o1_samples import TWO_OPERANDS, convert, num_floating, sample
from support.tolerances import HALF_STEP
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_mp.amp.function_cast_mode import FunctionCastMode
from lightning_mp.amp.op_lists import NAMESPACES, OP_POLICIES, Policy

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using torch.cross without specifying the dim"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
    pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated"),
]

HALF = [torch.float16, torch.bfloat16]
FP32 = torch.float32
ROWS = [row for row in OP_POLICIES if hasattr(NAMESPACES[row.namespace], row.name)]


@pytest.fixture(params=HALF, ids=["fp16", "bf16"])
def half(request):
    torch.manual_seed(3)
    return request.param


def input_kinds(row, half):
    """Yield the kinds of input of a function, each a copy."""
    args = sample(row.namespace, row.name)
    yield "half", convert(args, (half,))
    yield "fp32", convert(args, (FP32,))
    if num_floating(args) > 1:
        yield "mixed", convert(args, (half, FP32))
        yield "mixed reversed", convert(args, (FP32, half))
    if row.name.strip("_") in TWO_OPERANDS - {"equal"}:
        yield "half and 0-dim", (args[0].to(half), torch.tensor(0.7))


def by_hand(row, args, half):
    """Cast the arguments as the policy says, or return the error it asks for."""
    dtypes = []
    convert_all(args, lambda tensor: dtypes.append(tensor.dtype) or tensor)
    is_mixed = half in dtypes and FP32 in dtypes
    if row.policy is Policy.BANNED and half in dtypes:
        return NotImplementedError
    if row.policy is Policy.BANNED_IN_PLACE and dtypes[0] == half:
        return NotImplementedError
    if row.policy is Policy.HALF:
        return convert(args, (half,))
    if row.policy is Policy.FP32 or (row.policy is Policy.PROMOTE and is_mixed):
        return convert(args, (FP32,))
    if row.policy is Policy.MATCH_FIRST:
        return convert(args, (dtypes[0],))
    return args


def convert_all(args, fn):
    for item in args:
        if isinstance(item, (list, tuple)):
            convert_all(item, fn)
        elif isinstance(item, Tensor) and item.is_floating_point():
            fn(item)


def outcome(function, args):
    if args is NotImplementedError:
        return NotImplementedError
    torch.manual_seed(7)
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def assert_same(got, expected):
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert got == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.namespace}.{row.name}")
def test_every_name_of_the_table(row, half):
    function = getattr(NAMESPACES[row.namespace], row.name)
    for kind, args in input_kinds(row, half):
        expected = outcome(function, by_hand(row, convert_same(args), half))
        with FunctionCastMode(half):
            got = outcome(function, args)
        if row.policy not in (Policy.KEEP, Policy.BANNED, Policy.BANNED_IN_PLACE):
            assert not isinstance(expected, type), (kind, expected)
        assert_same(got, expected)


def convert_same(args):
    return tuple(
        [item.clone() for item in arg]
        if isinstance(arg, list)
        else arg.clone()
        if isinstance(arg, Tensor)
        else arg
        for arg in args
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.add_(torch.ones(7)),
        lambda x: x.__iadd__(torch.ones(7)),
        lambda x: x.mul_(torch.tensor(2.0)),
        lambda x: x.addcmul_(torch.ones(7), torch.ones(7)),
    ],
)
def test_in_place_keeps_the_tensor_and_its_dtype(call, half):
    x = torch.ones(7, dtype=half)
    with FunctionCastMode(half):
        assert call(x) is x
    assert x.dtype == half
    assert (x == 2).all()


def test_banned_function_names_remedies_that_work(half):
    x = torch.rand(7).to(half)
    with FunctionCastMode(half):
        for call in (nn.BCELoss(), F.binary_cross_entropy):
            with pytest.raises(NotImplementedError, match=r"binary_cross_entropy of .*16 tensors"):
                call(x, x)
        with pytest.raises(NotImplementedError, match=r"nn.BCEWithLogitsLoss.*allow_banned=True"):
            F.binary_cross_entropy(torch.rand(7), x)
        assert F.binary_cross_entropy_with_logits(x, x).dtype == FP32
        assert nn.BCEWithLogitsLoss()(x, x).dtype == FP32
        assert F.binary_cross_entropy(x.float(), x.float()).dtype == FP32
    with FunctionCastMode(half, allow_banned=True):
        loss = F.binary_cross_entropy(x, x)
    assert torch.equal(loss, F.binary_cross_entropy(x.float(), x.float()))


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda x: x.exp_(), r"exp_ on a .*16 tensor; .* x = x.exp\(...\)"),
        (torch.log_, r"log_ on .* x = x.log\(...\)"),
        (lambda x: x.pow_(2), r"x = x.pow\(...\)"),
        (lambda x: x.__ipow__(2), r"x = x.pow\(...\)"),
    ],
)
def test_in_place_form_of_an_fp32_function_is_refused(call, advice, half):
    x = torch.ones(7, dtype=half)
    with FunctionCastMode(half):
        with pytest.raises(NotImplementedError, match=advice):
            call(x)
        call(torch.ones(7))
    assert (x == 1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.sum(x, dtype=torch.float64),
        lambda x: torch.sum(x, dtype=x.dtype),
        lambda x: F.softmax(x, -1, dtype=x.dtype),
        lambda x: x.softmax(-1, x.dtype),
        lambda x: torch.exp(x, out=torch.empty(7, 7, dtype=x.dtype)),
        lambda x: torch.add(x, x, out=torch.empty(7, 7)),
    ],
)
def test_explicit_dtype_and_out_are_the_users_word(call, half):
    x = torch.rand(7, 7).to(half)
    expected = call(x)
    with FunctionCastMode(half):
        assert_same(call(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
def test_other_dtypes_are_never_cast(dtype, half):
    x = torch.ones(7, 7).to(dtype)
    with FunctionCastMode(half):
        assert (x @ x).dtype == dtype
        assert (x + x).dtype == dtype
        assert (x * torch.ones(7, 7, dtype=half)).dtype == torch.promote_types(dtype, half)
        assert torch.exp(x).dtype == (torch.float32 if dtype == torch.int64 else dtype)


def test_half_of_the_other_kind_is_cast_where_dtypes_meet(half):
    other = next(dtype for dtype in HALF if dtype != half)
    with FunctionCastMode(half):
        assert F.linear(torch.ones(3, 7, dtype=other), torch.ones(5, 7)).dtype == half
        with FunctionCastMode(other):
            assert F.linear(torch.ones(3, 7), torch.ones(5, 7)).dtype == other


def attention(x):
    weight = torch.ones(3 * 8, 8)
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, weight, None, None, None, False, 0.0, torch.ones(8, 8), None,
        need_weights=False,
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "is_half"),
    [
        (attention, True),
        (lambda x: F.gaussian_nll_loss(x, x, x.abs() + 1), False),
        (lambda x: F.lp_pool1d(x.transpose(0, 1), 2.0, 2), False),
        (lambda x: F.gumbel_softmax(x), False),
        (lambda x: nn.MultiheadAttention(8, 2)(x, x, x)[0], True),
        (lambda x: nn.TransformerEncoderLayer(8, 2, 16)(x), False),
    ],
)
def test_functions_written_in_python_have_rules_inside(call, is_half, half):
    x = torch.randn(5, 3, 8).to(half)
    with FunctionCastMode(half):
        assert call(x).dtype == (half if is_half else FP32)
        assert call(x.float()).dtype == (half if is_half else FP32)


def test_distance_function_of_the_user_is_cast(half):
    projection = nn.Linear(7, 5)
    seen = []

    def distance(a, b):
        seen.append(projection(a).dtype)
        return (projection(a) - projection(b)).abs().sum(-1)

    x = torch.randn(3, 7)
    with FunctionCastMode(half):
        F.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)
    assert seen == [half, half]


def test_unlisted_functions_follow_their_input(half):
    x = torch.randn(2, 4, 6, 6).to(half)
    with FunctionCastMode(half):
        for call in (torch.relu, F.silu, F.dropout, nn.BatchNorm2d(4), nn.MaxPool2d(2)):
            assert call(x).dtype == half
        assert nn.Embedding(7, 3)(torch.arange(5)).dtype == FP32


@pytest.mark.parametrize(
    "spectral_norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_spectral_norm(spectral_norm, half):
    layer, x = spectral_norm(nn.Linear(7, 5)), torch.randn(3, 7)
    with FunctionCastMode(half):
        output = layer(x)
        assert output.dtype == half
        assert layer.eval()(x).dtype == half
    output.float().sum().backward()
    assert {weight.grad.dtype for weight in layer.parameters()} == {FP32}


def test_meta_tensors_and_two_devices_in_one_call(half):
    layer = nn.Linear(7, 5, device="meta")
    with FunctionCastMode(half):
        hidden = layer(torch.empty(3, 7, device="meta"))
        assert hidden.dtype == half
        assert torch.exp(hidden).dtype == FP32
        # A zero-dimensional CPU tensor goes with tensors of any device.
        total = hidden + torch.tensor(1.0)
    assert (total.dtype, total.device.type) == (FP32, "meta")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, *grad_outputs):
        x, weight = ctx.saved_tensors
        return grad_outputs[0] @ weight.T, x.T @ grad_outputs[0]


def test_custom_autograd_function(half):
    x, weight = torch.rand(3, 7, requires_grad=True), torch.rand(7, 5, requires_grad=True)
    with FunctionCastMode(half):
        y = Doubled.apply(x, weight)
        assert y.dtype == half
        y.float().sum().backward()
    assert x.grad.dtype == weight.grad.dtype == FP32


def test_functional_transforms(half):
    weight, x = torch.rand(5, 7), torch.rand(3, 7)
    with FunctionCastMode(half):
        mapped = torch.vmap(lambda row: torch.exp(weight @ row))(x)
        expected = torch.stack([torch.exp(weight @ row) for row in x])
        grad = torch.func.grad(lambda w: torch.exp(x @ w.T).sum())(weight)
        jacobian = torch.func.jacrev(lambda v: (weight @ v).float())(x[0])
    assert mapped.dtype == FP32
    torch.testing.assert_close(mapped, expected, **HALF_STEP)
    assert grad.dtype == FP32
    torch.testing.assert_close(jacobian, weight, **HALF_STEP)


class Tagged(Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclass_keeps_its_override(half):
    x = torch.rand(7, 7).as_subclass(Tagged)
    with FunctionCastMode(half):
        y = F.linear(x, torch.rand(7, 7))
    assert isinstance(y, Tagged)
    assert y.as_subclass(Tensor).dtype == half
    assert Tagged.calls > 0


def test_no_namespace_is_patched(half):
    owners = SimpleNamespace(torch=torch, F=F, tensor=Tensor, vf=torch._VF)
    names = [("torch", "mm"), ("F", "linear"), ("F", "softmax"), ("tensor", "exp"), ("vf", "lstm")]

    def ids():
        return [getattr(getattr(owners, owner), name) for owner, name in names]

    before = ids()
    with FunctionCastMode(half):
        assert ids() == before
    assert ids() == before
    assert (torch.ones(7, 7) @ torch.ones(7, 7)).dtype == FP32


def test_exception_leaves_nothing_behind(half):
    with pytest.raises(RuntimeError), FunctionCastMode(half):
        torch.mm(torch.ones(3, 7), torch.ones(3, 7))
    assert (torch.ones(7, 7) @ torch.ones(7, 7)).dtype == FP32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_dtype_that_is_not_half_is_refused(dtype):
    with pytest.raises(ValueError, match=f"half_dtype = {dtype}; allowed: torch.float16"):
        FunctionCastMode(dtype)

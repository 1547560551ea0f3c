"""Every function of the table of O1: kernels against the Python mode, and the known differences."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from support.native import native_casts_removed, requires_native  # noqa: F401
from support.op_samples import converted, function_of, num_floating, sample_args
from support.tolerances import ROUNDOFF
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from lightning_mp.amp.dispatcher_ops import NATIVE_DIFFERENCES
from lightning_mp.amp.function_cast_mode import FunctionCastMode
from lightning_mp.amp.native_casts import NativeCasts
from lightning_mp.amp.op_lists import NAMESPACES, OP_POLICIES, OpPolicy, Policy

pytestmark = requires_native

HALVES = [torch.bfloat16, torch.float16]
DIFFERENT = {
    (entry.namespace, entry.name)
    for entry in NATIVE_DIFFERENCES
    if not entry.device_types or "cpu" in entry.device_types
}


ROWS = [
    row
    for row in OP_POLICIES
    if hasattr(NAMESPACES[row.namespace], row.name) and (row.namespace, row.name) not in DIFFERENT
]


def outcome(
    function: Callable, args: tuple[Any, ...], region: AbstractContextManager
) -> tuple[Any, list[Tensor]]:
    """Types of what a function returns, or how it is refused; and its tensors."""
    try:
        with region:
            leaves = tree_leaves(function(*args))
    except (NotImplementedError, RuntimeError) as error:
        return type(error), []
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return [leaf.dtype if isinstance(leaf, Tensor) else leaf for leaf in leaves], tensors


def input_kinds(row: OpPolicy, half: torch.dtype) -> list[tuple[Any, ...]]:
    """The arguments of one function in half, in FP32, mixed both ways, and with an FP32 scalar."""
    args, fp32 = sample_args(row), torch.float32
    kinds = [converted(args, dtypes) for dtypes in ((half,), (fp32,))]
    if num_floating(args) > 1:
        kinds += [converted(args, dtypes) for dtypes in ((half, fp32), (fp32, half))]
    if row.policy is Policy.PROMOTE and len(args) == 2 and args[0].shape == args[1].shape == (7, 7):
        kinds.append((args[0].to(half), torch.tensor(0.7)))
    return kinds


@pytest.mark.filterwarnings(
    "ignore:Using torch.cross without specifying the dim",
    "ignore:reduction. 'mean' divides the total loss",
    "ignore:torch.chain_matmul is deprecated",
)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.namespace}.{row.name}")
def test_every_function_is_cast_as_by_the_python_mode(row, half):
    function, casts = function_of(row), NativeCasts(half, ("cpu",))
    for reference_args, native_args in zip(
        *(input_kinds(row, half) for _ in range(2)), strict=True
    ):
        wanted, reference = outcome(function, reference_args, FunctionCastMode(half))
        dtypes, values = outcome(function, native_args, casts.context())
        assert dtypes == wanted
        if row.name == "matrix_exp" and half in dtypes:
            continue  # torch 2.13 computes garbage in half on the CPU, with or without casts
        for value, expected in zip(values, reference, strict=True):
            rounding = ROUNDOFF.get(value.dtype, 0.0) * 4
            torch.testing.assert_close(value, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("half", HALVES)
def test_documented_differences_are_as_documented(half):
    x, p = torch.rand(7, 7).to(half), torch.rand(7, 7)
    image = torch.rand(1, 2, 6, 6).to(half)
    with NativeCasts(half, ("cpu",)).context():
        assert F.binary_cross_entropy(x, x).dtype is torch.float32
        assert torch.pinverse(x).dtype is x.pinverse().dtype is torch.float32
        assert x.cpu().dtype is half
        assert (2 / x).dtype is torch.float32
        assert F.interpolate(image, 3, mode="area").dtype is half
        assert F.multilabel_soft_margin_loss(x, p).dtype is torch.float32
    with FunctionCastMode(half):
        assert x.cpu().dtype is torch.float32
        assert (2 / x).dtype is half
        assert F.interpolate(image, 3, mode="area").dtype is torch.float32
        with pytest.raises(NotImplementedError):
            F.binary_cross_entropy(x, x)


@pytest.mark.parametrize("half", HALVES)
def test_other_differences_are_as_documented(half):
    x, weight, bias = torch.rand(3, 7), torch.rand(5, 7), torch.rand(5)

    def dtypes():
        return [
            torch.vmap(lambda row: F.linear(row, weight, bias))(x).dtype,
            torch.vmap(lambda row: F.linear(row, weight))(x).dtype,
        ]

    with NativeCasts(half, ("cpu",)).context():
        assert dtypes() == [torch.float32, half]
    with FunctionCastMode(half):
        assert dtypes() == [half, half]


def test_no_difference_is_documented_that_is_none():
    tested = {
        "binary_cross_entropy", "pinverse", "cpu", "__rtruediv__", "__rdiv__", "interpolate",
        "multilabel_soft_margin_loss",
    }  # fmt: skip
    assert {name for _, name in DIFFERENT} == tested

"""The operators are those of the table of O1, they exist, and all differences are known."""

import re
from pathlib import Path

import pytest
import torch
from support.native import requires_native

from lightning_mp.amp import dispatcher_ops as module
from lightning_mp.amp.dispatcher_ops import (
    NATIVE_DIFFERENCES,
    STOCK_DIFFERENCES,
    dispatcher_ops,
    operators_of,
)
from lightning_mp.amp.native_library import load_native_library
from lightning_mp.amp.op_lists import NAMESPACES, OP_POLICIES, OpPolicy, Policy

PRESENT = [row for row in OP_POLICIES if hasattr(NAMESPACES[row.namespace], row.name)]
OPERATORS = set(torch._C._dispatch_get_all_op_names())


def test_every_function_has_operators_or_is_a_documented_difference():
    known = {(entry.namespace, entry.name) for entry in NATIVE_DIFFERENCES}
    bare = {(row.namespace, row.name) for row in PRESENT if not operators_of(row)}
    assert bare <= known
    assert len(PRESENT) > 250


def test_every_operator_exists():
    missing = {
        operator
        for row in PRESENT
        for operator in operators_of(row)
        if f"aten::{operator}" not in OPERATORS
    }
    assert missing == set()


def test_policies_come_from_the_table():
    policies = {(op.name, op.overload): op.policy for op in dispatcher_ops()}
    assert policies["aten::pow", "Tensor_Scalar"] is Policy.FP32
    for row in OP_POLICIES:
        for operator in operators_of(row):
            name, _, overload = operator.partition(".")
            assert policies[f"aten::{name}", overload] is row.policy


def test_origins():
    origins = {op.name: op.origin for op in dispatcher_ops()}
    assert origins["aten::exp"] == "apex"
    assert origins["aten::einsum"] == "superset"
    assert origins["aten::logsumexp"] == "keep"


def test_two_policies_for_one_operator_are_refused(monkeypatch):
    row = OpPolicy("torch", "arccos", Policy.HALF, "superset")
    monkeypatch.setattr(module, "OP_POLICIES", (*OP_POLICIES, row))
    with pytest.raises(RuntimeError, match=r"policy of acos = fp32 and half; .*torch\.arccos"):
        dispatcher_ops.__wrapped__()


def test_every_difference_is_about_a_function_of_the_table():
    rows = {(row.namespace, row.name) for row in OP_POLICIES}
    for entry in NATIVE_DIFFERENCES:
        assert (entry.namespace, entry.name) in rows
        assert set(entry.device_types) <= set(STOCK_DIFFERENCES)


def test_every_stock_difference_has_a_function_that_differs():
    for device_type, operators in STOCK_DIFFERENCES.items():
        differing = {
            operator
            for entry in NATIVE_DIFFERENCES
            if device_type in entry.device_types
            for row in OP_POLICIES
            if (row.namespace, row.name) == (entry.namespace, entry.name)
            for operator in operators_of(row)
        }
        # What linalg's own names stand for as well has a slot of its own.
        assert set(operators) <= differing


def stock_policies_of_cuda() -> dict[str, str]:
    """Read torch's own lists off its header."""
    header = Path(torch.__path__[0], "include", "ATen", "autocast_mode.h").read_text()
    policies = {}
    for macro, body in re.findall(
        r"#define AT_FORALL_(LOWER_PRECISION_FP|FP32|FP32_SET_OPT_DTYPE|PROMOTE)\(_\)(.*)",
        header.replace("\\\n", " "),
    ):
        policy = {"LOWER_PRECISION_FP": "half", "PROMOTE": "promote"}.get(macro, "fp32")
        for entry in re.findall(r"_\(([^()]*)\)", body):
            policies[".".join(part.strip() for part in entry.split(","))] = policy
    return policies


def test_differences_from_the_stock_lists_of_cuda_are_all_known():
    stock = stock_policies_of_cuda()
    assert len(stock) > 100
    ours = {
        op.name.removeprefix("aten::") + (f".{op.overload}" if op.overload else ""): op.policy.value
        for op in dispatcher_ops()
    }
    differing = {name: stock[name] for name in stock.keys() & ours if stock[name] != ours[name]}
    assert differing == {
        name: policy for name, policy in STOCK_DIFFERENCES["cuda"].items() if policy != "refused"
    }


@requires_native
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_stock_differences_are_in_taken_slots(device_type):
    library, _ = load_native_library()
    assert library is not None
    for name in STOCK_DIFFERENCES[device_type]:
        assert library.slot(f"aten::{name}", "", device_type) == "taken"

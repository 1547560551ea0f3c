"""docs/opt_levels.md names the functions of O1 as the table does, and what the kernels do apart."""

from pathlib import Path

import pytest

from lightning_mp.amp.dispatcher_ops import NATIVE_DIFFERENCES
from lightning_mp.amp.op_lists import OP_POLICIES, Policy

PAGE = Path(__file__).parents[2] / "docs" / "opt_levels.md"
# Named on the page by a range, or as "the losses of torch.nn.functional".
NOT_BY_NAME = {"conv2d", "cross_entropy", "kl_div", "binary_cross_entropy_with_logits"}


@pytest.mark.parametrize("policy", [Policy.HALF, Policy.FP32])
def test_every_function_of_apex_is_named(policy: Policy):
    page = PAGE.read_text()
    names = {
        row.name
        for row in OP_POLICIES
        if row.policy is policy and row.origin == "apex" and row.namespace != "Tensor"
        if not row.name.endswith(("_loss", "_cell")) and "transpose" not in row.name
    }
    assert len(names) > 15
    assert sorted(name for name in names - NOT_BY_NAME if f"`{name}`" not in page) == []


def test_every_difference_of_the_kernels_is_named():
    page = PAGE.read_text()
    names = {"x.cpu()" if entry.name == "cpu" else entry.name for entry in NATIVE_DIFFERENCES}
    assert sorted(name for name in names if f"`{name}`" not in page) == []

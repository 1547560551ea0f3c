"""The table of O1: complete by Apex's lists, free of contradictions, and of this torch version."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_mp.amp.op_lists import (
    DIFFERENCES,
    NAMESPACES,
    OP_POLICIES,
    Policy,
    policies_by_function,
)


def names(namespace, policy, origin="apex"):
    return {
        row.name
        for row in OP_POLICIES
        if (row.namespace, row.policy, row.origin) == (namespace, policy, origin)
    }


@pytest.mark.parametrize(
    ("namespace", "policy", "count"),
    [
        ("torch", Policy.HALF, 17 + 8),  # and the recurrent functions
        ("torch", Policy.FP32, 23),
        ("torch", Policy.PROMOTE, 16 + 2),
        ("functional", Policy.HALF, 8),
        ("functional", Policy.FP32, 29),
        ("functional", Policy.BANNED, 1),
        ("Tensor", Policy.HALF, 11),
        ("Tensor", Policy.FP32, 27 - 1),  # __ipow__ is in place
    ],
)
def test_every_list_of_apex_is_whole(namespace, policy, count):
    assert len(names(namespace, policy)) == count


def test_promoting_methods_of_apex():
    found = names("Tensor", Policy.PROMOTE) | {
        name for name in names("Tensor", Policy.MATCH_FIRST) if name.startswith("__")
    }
    assert len(found) == 36


def test_no_row_twice_and_no_contradiction():
    rows = Counter((row.namespace, row.name) for row in OP_POLICIES)
    assert [row for row, count in rows.items() if count > 1] == []
    seen = {}
    for row in OP_POLICIES:
        function = getattr(NAMESPACES[row.namespace], row.name, None)
        if function is not None:
            assert seen.setdefault(function, row).policy is row.policy, row


def test_every_name_of_apex_exists_in_this_torch():
    missing = [
        row.name
        for row in OP_POLICIES
        if row.origin == "apex" and not hasattr(NAMESPACES[row.namespace], row.name)
    ]
    assert missing == []


def test_resolution():
    policies = policies_by_function()
    assert policies[torch.mm] is Policy.HALF
    assert policies[F.conv2d] is Policy.HALF
    assert policies[torch.lstm] is Policy.HALF
    assert policies[F.layer_norm] is Policy.FP32
    assert policies[Tensor.__add__] is Policy.PROMOTE
    assert policies[Tensor.__iadd__] is Policy.MATCH_FIRST
    assert policies[Tensor.exp_] is Policy.BANNED_IN_PLACE
    assert policies[F.binary_cross_entropy] is Policy.BANNED
    assert torch.relu not in policies


def test_a_name_that_torch_lacks_is_left_out(monkeypatch):
    function = F.triplet_margin_loss
    monkeypatch.delattr(F, "triplet_margin_loss")
    assert function not in policies_by_function()


def test_functions_of_one_name_agree_over_the_namespaces():
    by_name = {}
    for row in OP_POLICIES:
        assert by_name.setdefault(row.name, row.policy) is row.policy, row


def test_differences_are_explained():
    assert all(d.subject and d.apex and d.here and d.reason for d in DIFFERENCES)
    assert len({d.subject for d in DIFFERENCES}) == len(DIFFERENCES)

"""fl agrees with the CPU on torch's database of operators: results, gradients, out, in place."""

import warnings
from typing import Any

import pytest
import torch
from support.fl_opinfo import (
    INDICES_ON_CPU,
    NOT_COMPARED,
    OTHER_DTYPES,
    READS_STORAGE,
    WITHOUT_SPARSE,
    check_operator,
)

NUM_PARTS = 12
EXCLUDED = WITHOUT_SPARSE | INDICES_ON_CPU | READS_STORAGE


@pytest.fixture(scope="module")
def operators() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if op.name not in NOT_COMPARED]


def check(operators: list[Any], offset: int, step: int) -> tuple[int, list[str]]:
    """Check every so manieth operator in float32, and in one other dtype."""
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(offset, len(operators), step):
            op = operators[number]
            if {op.name, op.full_name} & EXCLUDED:
                continue
            other = OTHER_DTYPES[number // step % len(OTHER_DTYPES)]
            for dtype in (torch.float32, other):
                if dtype in op.supported_dtypes("cpu"):
                    results += check_operator(op, dtype)
    return len(results), [problem for problem in results if problem]


def test_a_sample_of_the_operators(operators: list[Any]):
    num_checks, problems = check(operators, offset=3, step=97)
    assert num_checks > 50
    assert problems == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_all_operators(part: int, operators: list[Any]):
    num_checks, problems = check(operators, offset=part, step=NUM_PARTS)
    assert num_checks > 500
    assert problems == []

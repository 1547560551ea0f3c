"""Every operation is defined, checked by torch, and compiles."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kernels import (
    adam_arguments,
    clone_lists,
    make_lists,
    requires_kernels,
    same_bits,
    sgd_arguments,
)
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.definitions import SCHEMAS
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.l2_norm import l2_norm
from lightning_mp.kernels.reference import REFERENCES

OPS = torch.ops.lightning_mp
SHAPES = ((7,), (13, 3), (0,), ())


def sample_arguments() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments that every operation accepts."""
    gradients, weights, copies, means, squares = make_lists(
        torch.bfloat16, torch.bfloat16, shapes=SHAPES
    )
    one, flag, other = torch.ones(3, 1).unbind()
    flag.zero_()
    remainders = [torch.zeros(shape, dtype=torch.int16) for shape in SHAPES]
    trackers = torch.zeros(2, dtype=torch.int32).clone().unbind()
    steps = [torch.zeros(1) for _ in SHAPES]
    scalars = {"factor": one, "found_inf": flag}
    logits, classes = torch.randn(5, 7).bfloat16(), torch.tensor([0, 6, 3, -100, 2])
    row_gradients, class_weights = torch.randn(5), torch.rand(7)
    statistics = OPS.cross_entropy_forward(logits, classes, class_weights, -100, 0.1)[1]
    return {
        "gradient_stats_": ((gradients, one, 1.0, other, torch.ones(1), flag), {}),
        "adam_step_": (
            (gradients, weights, copies, means, squares, steps),
            adam_arguments(**scalars, lr_tensor=other),
        ),
        "sgd_step_": ((gradients, weights, copies, means), sgd_arguments(**scalars)),
        "scale_copy_": ((gradients, weights, one, flag), {}),
        "axpby_": ((gradients, means, weights, 1.0, 2.0, flag), {}),
        "l2_norm": ((gradients, True), {}),
        "update_scale_": (
            (one, *(item.clone() for item in trackers), flag, 2.0, 0.5, 10, 1, 1.0, 8.0),
            {},
        ),
        "split_": ((weights, copies, remainders), {}),
        "join_": ((copies, remainders, weights), {}),
        "cross_entropy_forward": ((logits, classes, class_weights, -100, 0.1), {}),
        "cross_entropy_backward": (
            (row_gradients, logits, classes, statistics, class_weights, -100, 0.1),
            {},
        ),
    }


def test_every_operation_has_a_reference_and_a_sample():
    assert set(SCHEMAS) == set(REFERENCES) == set(sample_arguments())


@pytest.mark.parametrize("name", SCHEMAS)
def test_torch_accepts_the_operation(name: str):
    arguments, settings = sample_arguments()[name]
    op = getattr(torch.ops.lightning_mp, name).default
    results = torch.library.opcheck(op, arguments, settings)
    assert set(results.values()) == {"SUCCESS"}


def test_torch_accepts_bfloat16_moments():
    (*lists, means, squares, steps), settings = sample_arguments()["adam_step_"]
    moments = [[item.bfloat16() for item in items] for items in (means, squares)]
    op = torch.ops.lightning_mp.adam_step_.default
    results = torch.library.opcheck(op, (*lists, *moments, steps), settings)
    assert set(results.values()) == {"SUCCESS"}


@requires_kernels
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_operation_has_a_kernel_for_cpus(name: str):
    qualified = f"lightning_mp::{name}"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU")
    registered = torch._C._dispatch_dump(qualified)
    assert "CompositeExplicitAutograd" in registered


def run_natively(name: str, *arguments: Any, **settings: Any) -> Any:
    """Call the kernel for CPUs; the dispatcher takes a tensor on the meta device elsewhere."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return getattr(OPS, name).default.redispatch(keys, *arguments, **settings)


CALLS: dict[str, Callable[..., Any]] = {
    "dispatcher": lambda name, *args, **settings: getattr(OPS, name)(*args, **settings),
    "reference": lambda name, *args, **settings: REFERENCES[name](*args, **settings),
    "native": run_natively,
}


def tensor_arguments(name: str) -> list[str]:
    arguments = getattr(OPS, name).default._schema.arguments
    return [item.name for item in arguments if "Tensor" in str(item.type)]


@pytest.mark.parametrize(
    "call", ["dispatcher", "reference", pytest.param("native", marks=requires_kernels)]
)
@pytest.mark.parametrize(
    ("name", "argument"), [(name, item) for name in SCHEMAS for item in tensor_arguments(name)]
)
def test_two_devices_are_refused_before_anything_is_written(name: str, argument: str, call: str):
    arguments, settings = sample_arguments()[name]
    names = [item.name for item in getattr(OPS, name).default._schema.arguments]
    given = dict(zip(names, arguments, strict=False)) | settings
    what = argument
    if isinstance(given[argument], list):
        given[argument] = [given[argument][0], given[argument][1].to("meta"), *given[argument][2:]]
        what = rf"{argument}\[1\]"
    else:
        given[argument] = (torch.ones(1) if given[argument] is None else given[argument]).to("meta")
    tensors = [item for item in tree_leaves(given) if isinstance(item, Tensor) and item.is_cpu]
    before = [tensor.clone() for tensor in tensors]
    positional = [given.pop(item) for item in names if item in given and item not in settings]

    with pytest.raises(
        RuntimeError, match=f"lightning_mp::{name}: .* is on .*; one device"
    ) as error:
        CALLS[call](name, *positional, **given)

    # A tensor that says where the others have to be is right by itself.
    is_pivot = re.search(r"(\w+) is on cpu; one device for all, here meta", str(error.value))
    assert re.search(f": {what} is on meta; one device for all, here cpu", str(error.value)) or (
        is_pivot and call != "dispatcher" and is_pivot[1] != argument
    )
    assert same_bits(tensors, before)


def two_passes(lists: list[list[Tensor]], norm: Tensor, factor: Tensor, flag: Tensor) -> Tensor:
    gradient_stats_(lists[0], norm=norm, factor=factor, found_inf=flag, max_norm=1.0)
    adam_step_(*lists, lr=1e-2, factor=factor, found_inf=flag, zero_gradients=True)
    return l2_norm(lists[1], per_tensor=True)[1]


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_step_compiles_as_a_whole(backend: str, state_dtype: torch.dtype):
    eager = [*make_lists(torch.bfloat16, torch.bfloat16, shapes=SHAPES), []]
    eager[3:5] = [[item.to(state_dtype) for item in items] for items in eager[3:5]]
    eager[5] = [torch.zeros(1) for _ in SHAPES]
    compiled = clone_lists(eager)
    scalars = [torch.zeros(3, 1).unbind() for _ in range(2)]
    torch._dynamo.reset()
    run = torch.compile(two_passes, backend=backend, fullgraph=True)
    for _ in range(2):
        expected = two_passes(eager, *scalars[0])
        assert torch.equal(run(compiled, *scalars[1]), expected)
    assert all(map(same_bits, eager, compiled))
    assert torch.equal(scalars[0][0], scalars[1][0])
    assert not any(item.any() for item in compiled[0])


def test_operations_without_tensors_do_nothing():
    torch.ops.lightning_mp.adam_step_([], [], [], [], [], [], **adam_arguments())
    torch.ops.lightning_mp.split_([], [], [])
    assert l2_norm([])[0].item() == 0.0

"""Compares fl with the CPU on samples of torch's own database of operators."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    # It warns of packages that are not installed.
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

Run: TypeAlias = "Callable[[SampleInput], Any]"

DEVICE = "fl:0"
# Each also gets one of these dtypes, in turn.
OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.complex64, torch.bool)
MAX_SAMPLES = 10
# What they return is not determined, or not a question of the device.
NOT_COMPARED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
# Its samples are views of storages with more in them, which do not come along to the device.
READS_STORAGE = frozenset({"as_strided.partial_views"})
# The device says clearly that it has no sparse layout.
WITHOUT_SPARSE = frozenset({"to_sparse", "sparse.sampled_addmm", "sparse.mm"})
# Takes indices from the CPU only, on every accelerator.
INDICES_ON_CPU = frozenset({"tensor_split"})


def check_operator(op: "OpInfo", dtype: torch.dtype) -> Iterator[str]:
    """Run the samples of an operator both ways.

    Args:
        op: The operator.
        dtype: Dtype of the samples.

    Yields:
        One text per check: empty if both ways agree, else what differs.
    """
    is_differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = islice(op.sample_inputs("cpu", dtype, requires_grad=is_differentiable), MAX_SAMPLES)
    for number, sample in enumerate(samples):
        for name, run in variants(op, is_differentiable).items():
            problem = compare(run, sample)
            if problem is not None:
                where = f"{op.full_name} {dtype} {name} sample {number}"
                yield f"{where}: {problem}" if problem else ""


def variants(op: "OpInfo", is_differentiable: bool) -> dict[str, Run]:
    """List the ways to call an operator: new results, given results, in place, with gradients."""
    runs: dict[str, Run] = {"forward": lambda s: forward(op, s)}
    if op.supports_out:
        runs["out"] = lambda s: with_out(op, s)
    if op.inplace_variant is not None:
        runs["in place"] = lambda s: in_place(op, s)
    if is_differentiable:
        runs["backward"] = lambda s: gradients(op, s)
    return runs


def compare(run: Run, sample: "SampleInput") -> str | None:
    """Run on the CPU and on fl; None where the CPU refuses the sample: there is no check then."""
    torch.manual_seed(0)
    try:
        expected = run(sample)
    except Exception:
        return None
    torch.manual_seed(0)
    try:
        result = run(to_fl(sample))
        torch.testing.assert_close(to_cpu(result), expected, equal_nan=True, check_stride=False)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def forward(op: "OpInfo", sample: "SampleInput") -> Any:
    return tree_map(detached, op(sample.input, *sample.args, **sample.kwargs))


def with_out(op: "OpInfo", sample: "SampleInput") -> Any:
    with torch.no_grad():
        torch.manual_seed(0)
        expected = op(sample.input, *sample.args, **sample.kwargs)
        out = tree_map(lambda t: torch.empty_like(t) if is_tensor(t) else t, expected)
        if not isinstance(out, torch.Tensor):
            out = tuple(out)
        torch.manual_seed(0)
        op(sample.input, *sample.args, **sample.kwargs, out=out)
    # The CPU leaves some results of ihfft2 and ihfftn unwritten: what it refuses here is no check.
    torch.testing.assert_close(out, expected, equal_nan=True, check_stride=False)
    return out


def in_place(op: "OpInfo", sample: "SampleInput") -> Any:
    with torch.no_grad():
        target = tree_map(lambda t: t.detach().clone() if is_tensor(t) else t, sample.input)
        op.inplace_variant(target, *sample.args, **sample.kwargs)
    return target


def gradients(op: "OpInfo", sample: "SampleInput") -> Any:
    inputs = [
        leaf
        for leaf in tree_leaves((sample.input, sample.args, sample.kwargs))
        if is_tensor(leaf) and leaf.requires_grad
    ]
    outputs = [
        leaf
        for leaf in tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
        if is_tensor(leaf) and leaf.requires_grad
    ]
    ones = [torch.ones_like(output) for output in outputs]
    found = torch.autograd.grad(outputs, inputs, ones, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def to_fl(sample: "SampleInput") -> "SampleInput":
    def move(value: Any) -> Any:
        if is_tensor(value):
            return value.detach().to(DEVICE).requires_grad_(value.requires_grad)
        is_device = value == "cpu" if isinstance(value, str) else value == torch.device("cpu")
        return torch.device(DEVICE) if is_device else value

    return type(sample)(
        tree_map(move, sample.input),
        args=tree_map(move, tuple(sample.args)),
        kwargs=tree_map(move, sample.kwargs),
    )


def to_cpu(result: Any) -> Any:
    return tree_map(lambda value: value.detach().cpu() if is_tensor(value) else value, result)


def detached(value: Any) -> Any:
    return value.detach() if is_tensor(value) else value


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)

"""What the kernels of csrc/cuda have to do on the CPU; each check gets the loaded library."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.guarded_memory import GuardedMemory
from support.shim import BACKWARD, FORWARD, SHUFFLED, Shim, assert_same_bits
from support.shim_cross_entropy_checks import (
    check_cross_entropy,
    check_cross_entropy_extremes,
    check_cross_entropy_layouts,
    check_cross_entropy_memory,
    check_cross_entropy_orders,
)
from support.shim_map_checks import (
    check_norms,
    check_scale_updates,
    check_scaled_copies,
    check_splits,
    check_sums,
)
from support.shim_steps import (
    BFLOAT,
    COMBINATIONS,
    FLOAT,
    HALF,
    ROLES,
    SIZES,
    StepInputs,
    adam,
    sgd,
    step_inputs,
)

SOURCES = Path(__file__).parents[2] / "csrc"
STEPS: Mapping[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "adam": (adam, {"decoupled": False, "clip_value": 0.2}),
    "adamw": (adam, {"maximize": True, "lr_tensor": torch.tensor([3e-3])}),
    "adam without factor": (adam, {"factor": None, "found_inf": None, "weight_decay": 0.0}),
    "sgd": (sgd, {}),
    "sgd without decay": (sgd, {"weight_decay": 0.0, "maximize": True, "factor": None}),
    "sgd with momentum": (sgd, {"momentum": 0.9, "dampening": 0.3, "clip_value": 0.2}),
    "first sgd": (sgd, {"momentum": 0.9, "is_first": True, "lr_tensor": torch.tensor([3e-3])}),
    "nesterov": (sgd, {"momentum": 0.9, "nesterov": True, "found_inf": None}),
}
OPTIONS = {"zero_gradients": True, "adopt": True}


def check_steps(shim: Shim) -> None:
    """All rules, with and without options, on mixed dtypes in one call."""
    inputs = step_inputs(SIZES * 2)
    for name, (function, settings) in STEPS.items():
        for options in ({}, OPTIONS):
            _compare_steps(shim, inputs, function, settings | options, name)


def check_combinations(shim: Shim) -> None:
    """Every combination of gradient and weight, in packs and one by one."""
    inputs = step_inputs([2057] * len(COMBINATIONS))
    for function in (adam, sgd):
        for options in ({}, OPTIONS):
            _compare_steps(shim, inputs, function, options, f"{function.__name__} {options}")


def check_step_memory(shim: Shim) -> None:
    """Memory that ends at a page which nobody may touch, and rows off the grid of 16 bytes."""
    inputs = step_inputs(SIZES)
    for place, shifted in (("end", ""), *(("start", role) for role in ROLES)):
        memory = GuardedMemory()
        expected, found = inputs.clone(), inputs.guarded(memory, place, shifted)
        adam(shim.cpu, expected, **OPTIONS)
        adam(shim.cuda, found, **OPTIONS)
        found.assert_same(expected, f"{place} {shifted}")
        assert memory.has_intact_zones(), f"wrote outside of a tensor: {place} {shifted}"


def check_rounded_steps(shim: Shim) -> None:
    """Bfloat16 moments, in packs and one by one, at the edges of memory and off its grid."""
    inputs = step_inputs(SIZES * 2).rounded()
    for settings in ({"decoupled": False, "clip_value": 0.2}, OPTIONS | {"seed": 11}):
        _compare_steps(shim, inputs, adam, settings, f"{settings}")
    inputs = step_inputs([2057] * len(COMBINATIONS)).rounded()
    _compare_steps(shim, inputs, adam, {}, "combinations")
    for place, shifted in (("end", ""), *(("start", role) for role in ROLES)):
        memory = GuardedMemory()
        expected, found = inputs.clone(), inputs.guarded(memory, place, shifted)
        adam(shim.cpu, expected, **OPTIONS)
        adam(shim.cuda, found, **OPTIONS)
        found.assert_same(expected, f"{place} {shifted}")
        assert memory.has_intact_zones(), f"wrote outside of a tensor: {place} {shifted}"


def check_step_orders(shim: Shim) -> None:
    """Any order of threads and blocks, any number of blocks."""
    inputs = step_inputs(SIZES)
    for order, max_grid in ((FORWARD, 1), (BACKWARD, 2), (SHUFFLED, 3), (SHUFFLED, 0)):
        for seed in range(2):
            shim.run_as(order, seed=seed, max_grid=max_grid)
            _compare_steps(shim, inputs, adam, OPTIONS, f"order {order}, {max_grid} blocks")


def check_skipped_steps(shim: Shim) -> None:
    """With found_inf nothing changes, in whatever layout."""
    steps = [(step_inputs(SIZES), *step) for step in STEPS.values()]
    steps.append((step_inputs(SIZES).rounded(), adam, {}))
    for inputs, function, settings in steps:
        found = inputs.clone()
        # Not dense, so that stand-ins take their places.
        found.copies = [
            torch.stack([item, item], dim=1)[:, 0] if item.numel() else item
            for item in inputs.copies
        ]
        changes = {"found_inf": torch.ones(1), "zero_gradients": True}
        function(shim.cuda, found, **(settings | changes))
        found.assert_same(inputs, function.__name__)


def check_layouts(shim: Shim) -> None:
    """A gradient in another layout than its weight belongs to the same elements."""
    weight = torch.randn(4, 3, 8, 8)
    gradient = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    states = [torch.zeros(4, 3, 8, 8) for _ in range(2)]
    inputs = StepInputs([gradient], [weight], [torch.empty(0)], *[[s] for s in states], [_one()])
    _compare_steps(shim, inputs, adam, {}, "channels_last")
    _compare_steps(shim, inputs, adam, {"zero_gradients": True}, "channels_last, zeroed")


def check_statistics(shim: Shim) -> None:
    """Norm, factor and found_inf of gradients of all dtypes, in any order of threads."""
    for order, max_grid in ((FORWARD, 0), (BACKWARD, 1), (SHUFFLED, 2)):
        shim.run_as(order, max_grid=max_grid)
        for name, gradients in _gradient_lists().items():
            for max_norm in (None, 0.5):
                place = "start" if max_norm is None else "end"
                memory = GuardedMemory()
                copies = [memory.copy(gradient, place=place) for gradient in gradients]
                found = _statistics(shim.cuda, copies, max_norm)
                _assert_same_list(found, _statistics(shim.cpu, gradients, max_norm), name)
                _assert_same_list(copies, gradients, name)


def check_order_of_sums(shim: Shim) -> None:
    """Norms of which each shows a sum that was rounded in another order."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        gradients = [torch.randn(500, generator=generator)]
        found = _statistics(shim.cuda, gradients, None)
        _assert_same_list(found, _statistics(shim.cpu, gradients, None), f"seed {seed}")


def check_statistics_alignment(shim: Shim) -> None:
    gradients = _gradient_lists()["random"]
    memory = GuardedMemory()
    copies = [memory.copy(gradient, shift=1) for gradient in gradients]
    found = _statistics(shim.cuda, copies, 0.5)
    _assert_same_list(found, _statistics(shim.cpu, gradients, 0.5), "shifted")


def check_tables(shim: Shim) -> None:
    """A table is uploaded if it is another one, and always for a graph."""
    gradients = [torch.randn(13) for _ in range(70)]
    expected = _statistics(shim.cpu, gradients, None)
    shim.launches()
    _statistics(shim.cuda, gradients, None)
    # 480 words at a time.
    assert shim.launches()["upload_kernel"] == 2
    _assert_same_list(_statistics(shim.cuda, gradients, None), expected, "uploaded before")
    assert shim.launches()["upload_kernel"] == 0
    shorter = [*gradients[:-1], gradients[-1][:5]]
    expected = _statistics(shim.cpu, shorter, None)
    _assert_same_list(_statistics(shim.cuda, shorter, None), expected, "same address")
    assert shim.launches()["upload_kernel"] == 2
    other_type = [gradient.view(BFLOAT)[:13] for gradient in gradients]
    expected = _statistics(shim.cpu, other_type, None)
    _assert_same_list(_statistics(shim.cuda, other_type, None), expected, "same address, bfloat16")
    shim.capture(True)
    for _ in range(2):
        shim.launches()
        _statistics(shim.cuda, gradients, None)
        assert shim.launches()["upload_kernel"] == 2


def check_huge_rows(shim: Shim) -> None:
    """Elements beyond 2**31: the last chunks of a row of which only they are run."""
    numel = 2**31 + 16384 + 11
    memory = GuardedMemory()
    inputs = step_inputs([16384 + 11], [(BFLOAT, "bfloat16")])
    huge = inputs.map(
        lambda role, tensor: tensor if role == "steps" else memory.huge(numel, tensor.dtype)
    )
    tail = slice(2**31, None)
    for role in ROLES:
        getattr(huge, role)[0][tail] = getattr(inputs, role)[0]
    expected = inputs.clone()
    adam(shim.cpu, expected, **OPTIONS)
    shim.run_as(first_block=2**31 // 16384)
    adam(shim.cuda, huge, **OPTIONS)
    for role in ROLES:
        assert_same_bits(getattr(huge, role)[0][tail], getattr(expected, role)[0], f"huge {role}")


def check_coverage(shim: Shim) -> None:
    """Every kernel in the sources is one that the checks run."""
    shim.launches()
    small = [torch.randn(13)]
    _statistics(shim.cuda, small, None)
    for function, settings in STEPS.values():
        function(shim.cuda, step_inputs([13, 40]), **settings)
    for check in (
        check_norms,
        check_scaled_copies,
        check_splits,
        check_scale_updates,
        check_cross_entropy_layouts,
    ):
        check(shim)
    launched = {name.split("<")[0] for name in shim.launches()}
    defined = set[str]()
    for path in (SOURCES / "cuda").iterdir():
        defined |= set(re.findall(r"__global__[^;{]*?(\w+_kernel)\(", path.read_text()))
    assert launched == defined, f"not run: {sorted(defined - launched)}"


CHECKS: Mapping[str, Callable[[Shim], None]] = {
    function.__name__.removeprefix("check_"): function
    for function in (
        check_steps,
        check_combinations,
        check_step_memory,
        check_rounded_steps,
        check_step_orders,
        check_skipped_steps,
        check_layouts,
        check_statistics,
        check_statistics_alignment,
        check_order_of_sums,
        check_norms,
        check_scaled_copies,
        check_sums,
        check_splits,
        check_scale_updates,
        check_cross_entropy,
        check_cross_entropy_memory,
        check_cross_entropy_orders,
        check_cross_entropy_extremes,
        check_cross_entropy_layouts,
        check_tables,
        check_huge_rows,
        check_coverage,
    )
}


def _compare_steps(
    shim: Shim,
    inputs: StepInputs,
    function: Callable[..., None],
    settings: Mapping[str, Any],
    what: str,
) -> None:
    expected, found = inputs.clone(), inputs.clone()
    function(shim.cpu, expected, **settings)
    function(shim.cuda, found, **settings)
    found.assert_same(expected, what)


def _statistics(ops: Any, gradients: list[Tensor], max_norm: float | None) -> list[Tensor]:
    results = [torch.full((1,), 7.0), torch.full((1,), 8.0), torch.zeros(len(gradients))]
    ops.gradient_stats_(gradients, torch.tensor([0.37]), max_norm, *results)
    return results


def _gradient_lists() -> dict[str, list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    sizes = (1, 63, 64, 0, 4095, 4097, 65536, 65537, 140001)
    dtypes = (FLOAT, BFLOAT, HALF)
    lists = {
        "random": [
            torch.randn(size, generator=generator).to(dtypes[index % 3])
            for index, size in enumerate(sizes)
        ],
        "none": [],
        "empty": [torch.empty(0)],
        "zeros": [torch.zeros(9000), -torch.zeros(5, dtype=HALF)],
        "tiny": [torch.full((5000,), 1e-25), torch.full((70000,), 1e-30).to(BFLOAT)],
        "large": [torch.full((5000,), 3e38).to(BFLOAT), torch.ones(7), torch.zeros(70000)],
        "mixed": [torch.cat([torch.zeros(5000), torch.full((3,), 1e-30), torch.zeros(8000)])],
    }
    for value in (float("inf"), -float("inf"), float("nan")):
        for position in (0, 4096, 70000):
            bad = torch.randn(70001, generator=generator).to(BFLOAT)
            bad[position] = value
            lists[f"{value} at {position}"] = [torch.ones(3), bad]
    return lists


def _assert_same_list(found: list[Tensor], expected: list[Tensor], what: str) -> None:
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(a, b, f"{what} [{index}]")


def _one() -> Tensor:
    return torch.ones(1)

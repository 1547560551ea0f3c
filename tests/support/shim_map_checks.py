"""Checks of the kernel shim for what reads and writes each element once, and for norms."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from lightning_mp.kernels.reference.split import split_master
from support.guarded_memory import GuardedMemory
from support.shim import SHUFFLED, Shim, assert_same_bits
from support.shim_steps import BFLOAT, FLOAT, HALF, SIZES

DTYPES = (FLOAT, BFLOAT, HALF)


def check_scaled_copies(shim: Shim) -> None:
    """All pairs of dtypes, in any alignment; an input that is not finite is found."""
    pairs = list(product(DTYPES, DTYPES))
    for shift, bad in product((0, 1), (None, float("inf"), float("nan"))):
        memory = GuardedMemory()
        inputs = [memory.copy(_numbers(size, pair[0]), shift=shift) for size, pair in _rows(pairs)]
        if bad is not None:
            inputs[4][-1] = inputs[7][0] = bad
        outputs = [
            memory.copy(torch.zeros(size, dtype=pair[1]), place="end")
            for size, pair in _rows(pairs)
        ]
        found = _scale_copy(shim.cuda, inputs, outputs)
        expected = _scale_copy(shim.cpu, inputs, [output.clone() for output in outputs])
        assert found[-1].nonzero().flatten().tolist() == ([] if bad is None else [4, 7])
        _assert_same_list(found, expected, f"shift {shift}, {bad}")
        assert memory.has_intact_zones(), "wrote outside of a tensor"


def check_sums(shim: Shim) -> None:
    """All triples of dtypes, one of them not at a multiple of 16 bytes."""
    triples = list(product(DTYPES, DTYPES, DTYPES))
    for shifted, bad in product(range(4), (None, float("-inf"))):
        memory = GuardedMemory()
        x, y, outputs = (
            [
                memory.copy(_numbers(size, triple[role]), shift=int(shifted == role))
                for size, triple in _rows(triples)
            ]
            for role in range(3)
        )
        if bad is not None:
            y[5][7] = bad
        found = _axpby(shim.cuda, x, y, outputs)
        expected = _axpby(shim.cpu, x, y, [output.clone() for output in outputs])
        assert found[-1].nonzero().flatten().tolist() == ([] if bad is None else [5])
        _assert_same_list(found, expected, f"shifted {shifted}, {bad}")
        assert memory.has_intact_zones(), "wrote outside of a tensor"


def check_splits(shim: Shim) -> None:
    """Masters are split as by the reference, and joined to what they were."""
    shim.run_as(SHUFFLED)
    for shifted in range(4):
        memory = GuardedMemory()
        sources = [memory.copy(_bits(size), shift=int(shifted == 1)) for size in SIZES]
        splits = [split_master(source) for source in sources]
        halves = [
            memory.copy(torch.zeros_like(half), shift=int(shifted == 2)) for half, _ in splits
        ]
        remainders = [
            memory.copy(torch.zeros_like(rest), shift=int(shifted == 3)) for _, rest in splits
        ]
        shim.cuda.split_(sources, halves, remainders)
        _assert_same_list(halves, [half for half, _ in splits], "halves")
        _assert_same_list(remainders, [rest for _, rest in splits], "remainders")
        joined = [memory.copy(torch.zeros_like(source), place="end") for source in sources]
        shim.cuda.join_(halves, remainders, joined)
        expected = [source.clone() for source in sources]
        shim.cpu.join_(halves, remainders, expected)
        _assert_same_list(joined, expected, "joined")
        assert memory.has_intact_zones(), "wrote outside of a tensor"


def check_norms(shim: Shim) -> None:
    """Norms of all tensors and of each, empty ones among them."""
    sizes = (0, 1, 13, 0, 65537, 140001, 0)
    tensors = [_numbers(size, DTYPES[index % 3]) for index, size in enumerate(sizes)]
    for per_tensor, max_grid in product((True, False), (0, 1, 3)):
        shim.run_as(SHUFFLED, max_grid=max_grid)
        found = shim.cuda.l2_norm(tensors, per_tensor)
        expected = shim.cpu.l2_norm(tensors, per_tensor)
        assert found[1].numel() == (len(sizes) if per_tensor else 0)
        _assert_same_list(list(found), list(expected), f"norms, {per_tensor}")


def check_scale_updates(shim: Shim) -> None:
    """The loss scale moves as on the CPU, step by step."""
    flags = [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    states = [_scale_states(ops, flags) for ops in (shim.cuda, shim.cpu)]
    assert states[0] == states[1]
    assert len(set(states[0])) > 5


def _rows(combinations: list[Any]) -> list[tuple[int, Any]]:
    """Give each combination a size; all sizes and combinations occur."""
    count = max(len(SIZES), len(combinations))
    return [
        (SIZES[index % len(SIZES)] % 5000 or 8, combinations[index % len(combinations)])
        for index in range(count)
    ]


def _numbers(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)


def _bits(numel: int) -> Tensor:
    """Return any floats, such as infinities, NaNs and subnormal numbers."""
    generator = torch.Generator().manual_seed(numel)
    return torch.randint(-(2**31), 2**31, (numel,), generator=generator).int().view(FLOAT)


def _scale_copy(ops: Any, inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    found_inf = torch.zeros(len(inputs))
    ops.scale_copy_(inputs, outputs, torch.tensor([0.37]), found_inf)
    return [*outputs, found_inf]


def _axpby(ops: Any, x: list[Tensor], y: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    found_inf = torch.zeros(len(x))
    ops.axpby_(x, y, outputs, 0.37, -1.7, found_inf)
    return [*outputs, found_inf]


def _scale_states(ops: Any, flags: list[float]) -> list[tuple[float, ...]]:
    state = [torch.tensor([64.0]), torch.zeros(1).int(), torch.tensor([2]).int()]
    states = []
    for flag in flags:
        ops.update_scale_(*state, torch.tensor([flag]), 2.0, 0.5, 2, 2, 16.0, 256.0)
        states.append(tuple(item.item() for item in state))
    return states


def _assert_same_list(found: list[Tensor], expected: list[Tensor], what: str) -> None:
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(a, b, f"{what} [{index}]")

"""Checks of each operation on a device against its reference on the host."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchkit.gpu_check import Check
from benchkit.gpu_rows import KINDS, ROLES, Rows, make_rows, place
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.reference import REFERENCES

__all__ = ["OP_CHECKS"]

_CPU = torch.device("cpu")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SIZES = (0, 1, 7, 103, 4096, 65_537, 200_003)
_QUICK_SIZES = (0, 1, 7, 103, 4099)

_ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "seed": 0}
_SGD = {"lr": 1e-2, "dampening": 0.0, "weight_decay": 0.1}
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"clip_value": 0.02},
    {"zero_gradients": True},
    {"adopt": True},
    {"maximize": True},
)
_SGD_KINDS: tuple[dict[str, Any], ...] = (
    {"momentum": 0.0, "nesterov": False, "is_first": False},
    {"momentum": 0.9, "nesterov": False, "is_first": True},
    {"momentum": 0.9, "nesterov": True, "is_first": False},
)


def _options(index: int, kind: str) -> dict[str, Any]:
    options = {
        "clip_value": None,
        "zero_gradients": False,
        "adopt": False,
        "maximize": False,
        "lr_tensor": None,
        **_OPTIONS[index % len(_OPTIONS)],
    }
    # Split masters cannot tell who wrote the half.
    return options if kind != "split" else {**options, "adopt": False}


def _write_from_outside(rows: Rows) -> None:
    for copy in rows.copies:
        copy[::3] += 1


def _scalars(device: torch.device, found_inf: float = 0.0) -> dict[str, Tensor]:
    return {
        "factor": torch.full((1,), 0.37, device=device),
        "found_inf": torch.full((1,), found_inf, device=device),
    }


def _adam(device: torch.device, is_quick: bool) -> str:
    cases = list(itertools.product(KINDS, _DTYPES, (None, *ROLES), (False, True)))
    for index, (kind, dtype, misaligned, decoupled) in enumerate(cases):
        options = {**_ADAM, **_options(index, kind), "decoupled": decoupled}
        expected = make_rows(kind, dtype, _QUICK_SIZES if is_quick else _SIZES)
        if options["adopt"]:
            _write_from_outside(expected)
        found = expected.on(device, misaligned)
        torch.ops.lightning_mp.adam_step_(*found.adam_lists(), **_scalars(device), **options)
        REFERENCES["adam_step_"](*expected.adam_lists(), **_scalars(_CPU), **options)
        found.assert_close(expected)
    return f"{len(cases)} calls"


def _sgd(device: torch.device, is_quick: bool) -> str:
    cases = list(itertools.product(KINDS, _DTYPES, (None, *ROLES[:4]), _SGD_KINDS))
    for index, (kind, dtype, misaligned, rule) in enumerate(cases):
        options = {**_SGD, **_options(index, kind), **rule}
        expected = make_rows(kind, dtype, _QUICK_SIZES if is_quick else _SIZES)
        if options["adopt"]:
            _write_from_outside(expected)
        found = expected.on(device, misaligned)
        for rows, function in (
            (found, torch.ops.lightning_mp.sgd_step_),
            (expected, REFERENCES["sgd_step_"]),
        ):
            gradients, weights, copies, buffers = rows.sgd_lists()
            lists = (gradients, weights, copies, buffers if rule["momentum"] else [])
            function(*lists, **_scalars(gradients[0].device), **options)
        found.assert_close(expected)
    return f"{len(cases)} calls"


def _overflow(device: torch.device, is_quick: bool) -> str:
    for kind in KINDS:
        before = make_rows(kind, torch.float32, _QUICK_SIZES)
        found = before.on(device)
        options = {**_options(2, kind), "decoupled": True}
        scalars = _scalars(device, found_inf=1.0)
        torch.ops.lightning_mp.adam_step_(*found.adam_lists(), **scalars, **_ADAM, **options)
        assert found.equals(before), f"{kind}: a skipped step wrote something"
    return "a skipped step changes no bit"


def _split(device: torch.device, is_quick: bool) -> str:
    sizes = _QUICK_SIZES if is_quick else _SIZES
    split = make_rows("split", torch.bfloat16, sizes)
    whole = make_rows("bfloat16 copy", torch.bfloat16, sizes)
    split, whole = split.on(device), whole.on(device)
    options = {**_ADAM, **_options(0, "split"), "decoupled": True}
    for _ in range(20):
        for rows in (split, whole):
            torch.ops.lightning_mp.adam_step_(*rows.adam_lists(), **_scalars(device), **options)
    joined = [torch.zeros_like(weight) for weight in whole.weights]
    torch.ops.lightning_mp.join_(split.copies, split.weights, joined)
    for index, (a, b) in enumerate(zip(joined, whole.weights, strict=True)):
        assert torch.equal(a, b), f"row {index} of split masters differs from whole ones"
    return "bit-equal to whole masters after 20 steps"


def _statistics(device: torch.device, is_quick: bool) -> str:
    sizes = _QUICK_SIZES if is_quick else _SIZES
    on_host = [
        tensor
        for dtype in _DTYPES
        for tensor in make_rows("float32", dtype, sizes).gradients
    ]  # fmt: skip
    results = [_stats([place(item, home) for item in on_host], home) for home in (_CPU, device)]
    norm = math.sqrt(sum(float(item.double().square().sum()) for item in on_host)) * 0.37
    for host, here in zip(*results, strict=True):
        assert torch.equal(host, here.cpu()), f"{here.item()} here, {host.item()} on the host"
    assert math.isclose(float(results[1][0]), norm, rel_tol=1e-6), (results[1][0], norm)
    num_found = 0
    for dtype, value in itertools.product(_DTYPES, (math.inf, -math.inf, math.nan)):
        for size in (1, 7, sizes[-1]):
            for position in {0, size // 2, size - 1}:
                gradient = torch.ones(size, dtype=dtype, device=device)
                gradient[position] = value
                ones = torch.ones(103, dtype=dtype, device=device)
                found_inf = _stats([ones, gradient], device)[2]
                assert found_inf.item() == 1.0, f"{value} at {position} of {size} was missed"
                num_found += 1
    return f"bit-equal to the CPU's kernel; {num_found} infinities and NaNs found"


def _stats(gradients: list[Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    norm, factor, found_inf = torch.zeros(3, 1, device=device).unbind()
    gradient_stats_(
        gradients,
        norm=norm,
        factor=factor,
        found_inf=found_inf,
        inv_scale=torch.full((1,), 0.37, device=device),
        max_norm=1.0,
    )
    return norm, factor, found_inf


def _maps(device: torch.device, is_quick: bool) -> str:
    sizes = _QUICK_SIZES if is_quick else _SIZES
    ops, num_calls = torch.ops.lightning_mp, 0
    for source, target in itertools.product(_DTYPES, _DTYPES):
        inputs = make_rows("float32", source, sizes).gradients
        here = [place(item, device) for item in inputs]
        for name in ("scale_copy_", "axpby_"):
            outputs = [torch.zeros(size, dtype=target) for size in sizes]
            found = [place(item, device) for item in outputs]
            flags = [torch.zeros(1), torch.zeros(1, device=device)]
            for function, lists, flag in (
                (REFERENCES[name], (inputs, outputs), flags[0]),
                (getattr(ops, name), (here, found), flags[1]),
            ):
                if name == "scale_copy_":
                    function(*lists, torch.full((1,), 0.37, device=flag.device), flag)
                else:
                    function(lists[0], lists[0], lists[1], 0.37, -2.0, flag)
            tolerance = 1e-6 if target == torch.float32 else 2.0**-7
            for a, b in zip(found, outputs, strict=True):
                torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=1e-6)
            assert flags[1].item() == 0.0
            num_calls += 1
    return f"{num_calls} calls"


def _norms(device: torch.device, is_quick: bool) -> str:
    for dtype in _DTYPES:
        inputs = make_rows("float32", dtype, _QUICK_SIZES if is_quick else _SIZES).gradients
        here = [place(item, device, is_misaligned=True) for item in inputs]
        total, each = torch.ops.lightning_mp.l2_norm(here, True)
        norms = torch.stack([item.double().norm() for item in inputs])
        torch.testing.assert_close(each.cpu(), norms.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(total.cpu(), norms.norm().float(), rtol=1e-6, atol=0)
    return "of each tensor and of all"


def _roundtrip(device: torch.device, is_quick: bool) -> str:
    step = 65_537 if is_quick else 257
    # Every step-th of all bit patterns; a NaN comes back as the canonical one.
    patterns = torch.arange(-(2**31), 2**31 - 1, step).to(torch.int32)
    whole = place(patterns, device).view(torch.float32)
    half = torch.empty_like(whole, dtype=torch.bfloat16)
    remainder = torch.empty_like(whole, dtype=torch.int16)
    joined = torch.empty_like(whole)
    torch.ops.lightning_mp.split_([whole], [half], [remainder])
    torch.ops.lightning_mp.join_([half], [remainder], [joined])
    is_same = (joined.view(torch.int32) == whole.view(torch.int32)) | whole.isnan()
    assert bool(is_same.all()), f"{int((~is_same).sum())} numbers did not come back"
    assert torch.equal(joined.isnan(), whole.isnan())
    return f"{patterns.numel()} numbers come back"


def _scale(device: torch.device, is_quick: bool) -> str:
    states = [
        [
            torch.tensor(8.0, device=home),
            *(torch.tensor(count, dtype=torch.int32, device=home) for count in (0, 2)),
        ]
        for home in (_CPU, device)
    ]
    settings = (2.0, 0.5, 3, 2, 2.0**-2, 2.0**6)
    flags = [0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, *[0] * 40]
    for index, flag in enumerate(flags):
        functions = (REFERENCES["update_scale_"], torch.ops.lightning_mp.update_scale_)
        for state, function in zip(states, functions, strict=True):
            function(*state, torch.full((), float(flag), device=state[0].device), *settings)
        values = [[item.item() for item in state] for state in states]
        assert values[0] == values[1], f"step {index}: {values[1]}, expected {values[0]}"
    return f"{len(flags)} steps"


def _deterministic(device: torch.device, is_quick: bool) -> str:
    start = make_rows("bfloat16 copy", torch.bfloat16, _QUICK_SIZES if is_quick else _SIZES)

    def run() -> tuple[Rows, list[Tensor]]:
        rows = start.on(device)
        stats = _stats(rows.gradients, device)
        options = {**_ADAM, **_options(0, ""), "decoupled": True}
        scalars = {"factor": stats[1], "found_inf": stats[2]}
        torch.ops.lightning_mp.adam_step_(*rows.adam_lists(), **scalars, **options)
        return rows, list(stats)

    first_rows, first_stats = run()
    for _ in range(10):
        rows, stats = run()
        assert all(map(torch.equal, stats, first_stats)), "statistics differ between runs"
        assert rows.equals(first_rows), "a step differs between runs"
    return "11 runs are bit-equal"


OP_CHECKS: Mapping[str, Check] = {
    "Adam and AdamW": _adam,
    "SGD": _sgd,
    "skipped step": _overflow,
    "split masters": _split,
    "statistics of gradients": _statistics,
    "copies and sums": _maps,
    "norms": _norms,
    "split and join": _roundtrip,
    "loss scale": _scale,
    "same result every time": _deterministic,
}

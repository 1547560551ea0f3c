"""Checks of bfloat16 moments on a device: its roundings are those of the reference, bit for bit."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from benchkit.gpu_check import Check
from benchkit.gpu_rows import KINDS, ROLES, Rows, make_rows
from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.reference.stochastic_rounding import (
    places_of,
    random_words,
    stochastic_bfloat16,
)

__all__ = ["ROUNDING_CHECKS"]

_SEED = 2**63 - 25
_SIZES = (0, 1, 7, 103, 4096, 65_537, 200_003)
_QUICK_SIZES = (0, 1, 7, 103, 4099)


def _rounded_moments(device: torch.device, is_quick: bool) -> str:
    """Compare with FP32 moments of the same device, rounded on the host."""
    cases = [(kind, misaligned) for kind in KINDS for misaligned in (None, *ROLES)]
    for kind, misaligned in cases:
        start = _rounded(make_rows(kind, torch.bfloat16, _QUICK_SIZES if is_quick else _SIZES))
        found = start.on(device, misaligned)
        full = _with_moments(start, [[item.float() for item in own] for own in _moments(start)])
        full = full.on(device)
        for rows in (found, full):
            adam_step_(*rows.adam_lists(), lr=1e-2, weight_decay=0.1, seed=_SEED)
        expected = _rounded_by_chance(full.on(torch.device("cpu")))
        assert found.equals(expected), f"{kind}, {misaligned} misaligned: another rounding"
    return f"{len(cases)} calls are bit-equal"


def _moments(rows: Rows) -> list[list[Tensor]]:
    return [rows.exp_avgs, rows.exp_avg_sqs]


def _with_moments(rows: Rows, moments: list[list[Tensor]]) -> Rows:
    return dataclasses.replace(rows, exp_avgs=moments[0], exp_avg_sqs=moments[1])


def _rounded(rows: Rows) -> Rows:
    return _with_moments(rows, [[item.bfloat16() for item in own] for own in _moments(rows)])


def _rounded_by_chance(rows: Rows) -> Rows:
    words = [
        random_words(places_of(weight), _SEED, step)
        for weight, step in zip(rows.weights, rows.steps, strict=True)
    ]
    pairs = [
        [
            stochastic_bfloat16(item, word >> shift)
            for item, word in zip(own, words, strict=True)
        ]
        for own, shift in zip(_moments(rows), (0, 16), strict=True)
    ]  # fmt: skip
    return _with_moments(rows, pairs)


ROUNDING_CHECKS: Mapping[str, Check] = {"bfloat16 moments": _rounded_moments}

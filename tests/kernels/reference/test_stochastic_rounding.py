"""Rounding up or down by chance: the chance is even, and what must not move does not."""

import math

import pytest
import torch
from torch import Tensor

from lightning_mp.kernels.reference.stochastic_rounding import (
    places_of,
    random_words,
    stochastic_bfloat16,
)

NUM_PLACES = 2**16
LARGEST = torch.finfo(torch.bfloat16).max
# Beyond this many standard deviations a fair hash gets once in 2 billion tries.
SIGMAS = 6.0


def words(seed: int = 7, step: float = 1.0, count: int = NUM_PLACES) -> Tensor:
    return random_words(torch.arange(count), seed, torch.tensor(step))


def halves(random: Tensor) -> dict[str, Tensor]:
    return {"first": random & 0xFFFF, "second": random >> 16}


def assert_even(counts: Tensor) -> None:
    expected = counts.sum() / counts.numel()
    chi_square = float(((counts - expected).square() / expected).sum())
    degrees = counts.numel() - 1
    assert abs(chi_square - degrees) < SIGMAS * math.sqrt(2 * degrees)


def assert_unrelated(first: Tensor, second: Tensor) -> None:
    pair = torch.stack([first.double().flatten(), second.double().flatten()])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < SIGMAS / math.sqrt(first.numel())


@pytest.mark.parametrize("half", ["first", "second"])
@pytest.mark.parametrize("shift", [0, 4, 8])
def test_every_number_is_as_likely_as_another(half: str, shift: int):
    for seed, step in [(0, 1.0), (1, 1.0), (2**62, 3.0), (-5, 70000.0)]:
        found = halves(words(seed, step))[half] >> shift
        assert_even(torch.bincount(found & 0xFF, minlength=256).double())


def test_every_bit_is_even_over_steps():
    found = torch.stack([words(step=float(step), count=64) for step in range(1, 2049)])
    for bit in range(32):
        ones = float((found >> bit & 1).double().mean(0).sub(0.5).abs().max())
        assert ones < SIGMAS * 0.5 / math.sqrt(2048)


def test_numbers_of_states_places_steps_and_seeds_are_unrelated():
    base = words()
    first, second = halves(base).values()
    assert_unrelated(first, second)
    for half in ("first", "second"):
        mine = halves(base)[half]
        for other in (words(step=2.0), words(step=1025.0), words(seed=8), words(seed=7 + 2**32)):
            assert_unrelated(mine, halves(other)[half])
        for distance in (1, 2, 16, 256, 4096):
            assert_unrelated(mine[:-distance], mine[distance:])


@pytest.mark.parametrize("value", [1.0 + 2.0**-10, -0.3, 3e-39, 1e30, -1e-41])
def test_the_mean_of_roundings_is_the_number(value: float):
    number = torch.tensor(value)
    exact = number.double()
    for step in (1.0, 2.0, 1000.0):
        for half in halves(words(step=step)).values():
            rounded = stochastic_bfloat16(number.expand(NUM_PLACES), half).double()
            low, high = rounded.min(), rounded.max()
            assert low < exact < high
            error = abs(float(rounded.mean() - exact))
            assert error < SIGMAS * 0.5 * float(high - low) / math.sqrt(NUM_PLACES)


def test_the_mean_over_steps_is_the_number():
    numbers = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 1.0
    total = torch.zeros(64, dtype=torch.float64)
    for step in range(1, 1001):
        total += stochastic_bfloat16(numbers, words(step=float(step), count=64)).double()
    limit = SIGMAS * 0.5 * 2.0**-7 / math.sqrt(1000)
    assert float((total / 1000 - numbers.double()).abs().max()) < limit


def all_bfloat16() -> Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("random", [0, 1, 0x7FFF, 0xFFFF])
def test_bfloat16_values_stay(random: int):
    values = all_bfloat16()
    rounded = stochastic_bfloat16(values.float(), torch.full(values.shape, random))
    is_nan = values.isnan()
    assert torch.equal(rounded[~is_nan].view(torch.int16), values[~is_nan].view(torch.int16))
    assert set(rounded[is_nan].view(torch.int16).tolist()) == {0x7FC0}


@pytest.mark.parametrize("lower_bits", [1, 0x8000, 0xFFFF])
def test_nothing_passes_its_neighbours_or_changes_its_sign(lower_bits: int):
    below = all_bfloat16()
    below = below[below.isfinite()]
    bits = below.view(torch.int16).to(torch.int32) << 16
    numbers = (bits + lower_bits).view(torch.float32)
    # Away from 0, bit patterns count up; after the largest finite number nothing follows.
    above = (bits + 0x10000 >> 16).to(torch.int16).view(torch.bfloat16)
    above = torch.where(above.isfinite(), above, below)
    for random in (0, 1, 0x8000, 0xFFFF):
        rounded = stochastic_bfloat16(numbers, torch.full(numbers.shape, random))
        is_up = random + lower_bits > 0xFFFF
        expected = above if is_up else below
        assert torch.equal(rounded.view(torch.int16), expected.view(torch.int16))


def test_what_is_not_finite_stays_so_and_nothing_else_becomes_it():
    largest = torch.finfo(torch.float32).max
    special = torch.tensor([math.inf, -math.inf, math.nan, largest, -largest])
    # A NaN whose payload lies in the bits that are cut off.
    hidden = torch.tensor([0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    for random in (0, 0xFFFF):
        rounded = stochastic_bfloat16(special, torch.full((5,), random))
        assert rounded[:2].tolist() == [math.inf, -math.inf]
        assert bool(rounded[2].isnan())
        assert rounded[3:].tolist() == [LARGEST, -LARGEST]
        assert bool(stochastic_bfloat16(hidden, torch.full((2,), random)).isnan().all())


def test_places_are_those_of_memory():
    image = torch.empty(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    order = torch.arange(image.numel())
    assert torch.equal(places_of(image).as_strided((image.numel(),), (1,)), order)
    assert torch.equal(places_of(torch.empty(3, 4)), torch.arange(12).view(3, 4))
    assert torch.equal(places_of(torch.empty(3, 8)[:, ::2]), torch.arange(12).view(3, 4))
    assert places_of(torch.empty(())).tolist() == 0
    assert places_of(torch.empty(0, 3)).shape == (0, 3)

"""Adam with bfloat16 moments: FP32 arithmetic, and roundings that are the same everywhere."""

import math
from typing import Any

import pytest
import torch
from support.kernels import (
    FLOATING,
    HALF,
    adam_arguments,
    both_implementations,
    clone_lists,
    joined,
    make_lists,
    operation,
    requires_kernels,
    same_bits,
)
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.reference.stochastic_rounding import (
    places_of,
    random_words,
    stochastic_bfloat16,
)

KINDS = [
    (gradient, copy, is_split)
    for gradient in FLOATING
    for copy, is_split in [(None, False), *((half, False) for half in HALF), (HALF[0], True)]
]
SEED = 2**63 - 11


def make_rounded(*args: Any, **kwargs: Any) -> list[list[Tensor]]:
    """Lists with bfloat16 moments, and counters."""
    lists = make_lists(*args, **kwargs)
    lists[3:] = [[state.bfloat16() for state in states] for states in lists[3:]]
    return [*lists, [torch.tensor(float(index % 3)) for index in range(len(lists[0]))]]


def in_full(lists: list[list[Tensor]]) -> list[list[Tensor]]:
    """The same with FP32 moments."""
    full = clone_lists(lists)
    full[3:5] = [[state.float() for state in states] for states in full[3:5]]
    return full


def rounded(full: list[list[Tensor]], seed: int) -> list[list[Tensor]]:
    """What FP32 moments after a step are rounded to."""
    words = [
        random_words(places_of(weight), seed, step)
        for weight, step in zip(full[1], full[5], strict=True)
    ]
    return [
        [
            stochastic_bfloat16(state, word >> shift)
            for state, word in zip(full[role], words, strict=True)
        ]
        for role, shift in ((3, 0), (4, 16))
    ]


@requires_kernels
@pytest.mark.parametrize(("gradient", "copy", "is_split"), KINDS)
@pytest.mark.parametrize("decoupled", [True, False])
def test_a_step_is_that_of_fp32_moments_and_a_rounding(
    gradient: torch.dtype, copy: torch.dtype | None, is_split: bool, decoupled: bool
):
    for zero_gradients, adopt, clip_value in [(False, False, None), (True, True, 0.5)]:
        settings = adam_arguments(
            factor=torch.tensor([0.37]),
            decoupled=decoupled,
            zero_gradients=zero_gradients,
            adopt=adopt,
            clip_value=clip_value,
            seed=SEED,
        )
        mine = make_rounded(gradient, copy, is_split=is_split)
        full = in_full(mine)
        operation("adam_step_")(*mine, **settings)
        operation("adam_step_")(*full, **settings)
        full[3:5] = rounded(full, SEED)
        assert all(map(same_bits, mine, full))


@requires_kernels
@pytest.mark.parametrize(("gradient", "copy", "is_split"), KINDS)
def test_kernels_give_what_the_reference_gives(
    gradient: torch.dtype, copy: torch.dtype | None, is_split: bool
):
    results = []
    for implementation in ("active", "reference"):
        lists = make_rounded(gradient, copy, is_split=is_split)
        operation("adam_step_", implementation)(*lists, **adam_arguments(seed=SEED))
        results.append(lists)
    mine, other = results
    assert same_bits(mine[5], other[5])
    torch.testing.assert_close(joined(*mine[1:3]), joined(*other[1:3]), rtol=1e-6, atol=1e-6)
    # Where FP32 results are a rounding apart, one of the two can be the other side's neighbour.
    for found, expected in zip(mine[3] + mine[4], other[3] + other[4], strict=True):
        assert float((found != expected).sum()) <= 2e-4 * found.numel()
        torch.testing.assert_close(found, expected, rtol=2.0**-7, atol=0)


@both_implementations
def test_the_seed_and_the_step_say_how_it_is_rounded(implementation: str):
    def step(seed: int, count: float) -> list[list[Tensor]]:
        lists = make_rounded(torch.float32, None, shapes=[(1031,)])
        lists[5][0].fill_(count)
        # A gradient of 0 and no decay: moments shrink alike whatever the step.
        lists[0][0].zero_()
        settings = adam_arguments(seed=seed, weight_decay=0.0)
        operation("adam_step_", implementation)(*lists, **settings)
        return lists[3:5]

    base = step(1, 5.0)
    assert all(map(same_bits, base, step(1, 5.0)))
    for other in (step(2, 5.0), step(1, 6.0)):
        assert not any(map(same_bits, base, other))


@both_implementations
@pytest.mark.parametrize(("gradient", "copy", "is_split"), KINDS)
def test_a_skipped_step_changes_no_bit(
    implementation: str, gradient: torch.dtype, copy: torch.dtype | None, is_split: bool
):
    lists = make_rounded(gradient, copy, is_split=is_split)
    lists[0][0].fill_(math.nan)
    # Not the canonical NaN.
    lists[3][1].view(torch.int16).fill_(0x7FC5)
    before = clone_lists(lists)
    settings = adam_arguments(found_inf=torch.tensor([3.0]), zero_gradients=True, adopt=True)
    operation("adam_step_", implementation)(*lists, **settings)
    assert all(map(same_bits, lists, before))


@requires_kernels
@pytest.mark.parametrize("shift", [1, 3, 5])
def test_starts_need_not_be_aligned(shift: int):
    lists = make_rounded(torch.bfloat16, torch.float16, shapes=[(70001,), (103,)])
    expected = clone_lists(lists)
    mine = [
        [torch.cat([torch.zeros(shift, dtype=item.dtype), item])[shift:] for item in items]
        for items in lists[:5]
    ]
    mine.append(lists[5])
    adam_step_(*expected, lr=0.1, seed=SEED)
    adam_step_(*mine, lr=0.1, seed=SEED)
    assert all(map(same_bits, mine, expected))


@both_implementations
# The weight's own layout says where its elements are.
@pytest.mark.parametrize("odd", [0, 2, 3, 4])
@pytest.mark.parametrize("is_channels_last", [True, False])
def test_the_layouts_of_others_do_not_count(implementation: str, odd: int, is_channels_last: bool):
    lists = make_rounded(torch.float32, torch.bfloat16, shapes=[(4, 3, 8, 7)])
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    lists = [[item.contiguous(memory_format=layout) for item in items] for items in lists[:5]]
    lists.append([torch.zeros(())])
    expected = clone_lists(lists)
    wide = torch.empty(4, 3, 8, 14, dtype=lists[odd][0].dtype)[..., ::2]
    lists[odd] = [wide.copy_(lists[odd][0])]
    operation("adam_step_", implementation)(*expected, **adam_arguments(seed=SEED))
    operation("adam_step_", implementation)(*lists, **adam_arguments(seed=SEED))
    for found, wanted in zip(lists, expected, strict=True):
        assert same_bits([found[0].contiguous()], [wanted[0].contiguous()])


def second_moment(dtype: torch.dtype) -> float:
    """Mean of second moments after they have followed gradients of 1 for 2000 steps."""
    lists = make_lists(torch.float32, None, shapes=[(256,)])
    lists[0][0].fill_(1.0)
    lists[3:] = [[torch.zeros(256, dtype=dtype)], [torch.full((256,), 0.25).to(dtype)]]
    step = [torch.zeros(())]
    for _ in range(2000):
        settings = adam_arguments(lr=0.0, beta2=0.999, seed=SEED)
        operation("adam_step_")(*lists, step, **settings)
    return float(lists[4][0].float().mean())


@requires_kernels
def test_a_slow_average_arrives_where_nearest_rounding_would_stay():
    full = second_moment(torch.float32)
    found = second_moment(torch.bfloat16)
    assert full == pytest.approx(1 - 0.75 * 0.999**2000, rel=1e-4)
    assert found == pytest.approx(full, rel=0.01)
    # What a step adds at 0.5 is less than half of the distance to the next bfloat16 value.
    moment = torch.tensor(0.5)
    for _ in range(2000):
        moment = (moment * 0.999 + 0.001).bfloat16().float()
    assert moment < 0.6


@both_implementations
def test_moments_stay_finite_and_second_ones_are_not_negative(implementation: str):
    lists = make_rounded(torch.float32, None, shapes=[(1031,)])
    limit = torch.finfo(torch.bfloat16).max
    lists[3][0].fill_(-limit)
    lists[4][0].fill_(limit)
    lists[0][0].fill_(-3.4e38)
    lists[4][0][::2] = 1e-41
    lists[0][0][::2] = 0.0
    for _ in range(20):
        settings = adam_arguments(seed=SEED, beta1=0.5, beta2=0.999, weight_decay=0.0)
        operation("adam_step_", implementation)(*lists, **settings)
        # The gradient's square is infinite; the mean is not, and is rounded to a finite number.
        assert bool(lists[3][0].isfinite().all())
        assert bool((lists[4][0] >= 0).all())


ERRORS = {
    r"exp_avg_sqs\[0\] is float32; bfloat16, as exp_avgs\[0\], is needed": {
        4: lambda items: [items[0].float(), items[1]]
    },
    r"exp_avgs\[1\] is float32; bfloat16, as exp_avgs\[0\], is needed": {
        3: lambda items: [items[0], items[1].float()]
    },
    r"exp_avgs\[1\] is float16; float32 or bfloat16 is needed": {
        3: lambda items: [items[0], items[1].half()]
    },
}


@both_implementations
@pytest.mark.parametrize("message", ERRORS)
def test_mixed_moments_are_refused(implementation: str, message: str):
    lists = make_rounded(torch.float32, torch.bfloat16, shapes=[(3,), (7,)])
    for index, change in ERRORS[message].items():
        lists[index] = change(lists[index])
    before = clone_lists(lists)
    with pytest.raises(RuntimeError, match=f"lightning_mp::adam_step_: {message}"):
        operation("adam_step_", implementation)(*lists, **adam_arguments(zero_gradients=True))
    assert all(map(same_bits, lists, before))

"""The step of Adam and AdamW: both implementations against torch.optim, and against each other."""

import itertools
import math
from typing import Any

import pytest
import torch
from support import tolerances
from support.kernels import (
    FLOATING,
    HALF,
    SHAPES,
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

KINDS = [
    (gradient, copy, is_split)
    for gradient in FLOATING
    for copy, is_split in [(None, False), *((half, False) for half in HALF), (HALF[0], True)]
]


def make_steps(count: int = len(SHAPES)) -> list[Tensor]:
    return [torch.tensor(float(index % 3)) for index in range(count)]


@requires_kernels
@pytest.mark.parametrize(("gradient", "copy", "is_split"), KINDS)
@pytest.mark.parametrize("decoupled", [True, False])
def test_kernels_give_what_the_reference_gives(
    gradient: torch.dtype, copy: torch.dtype | None, is_split: bool, decoupled: bool
):
    start = [*make_lists(gradient, copy, is_split=is_split), make_steps()]
    options = itertools.product([None, 0.5], [False, True], [False, True], [False, True])
    for clip_value, zero_gradients, maximize, adopt in options:
        settings = adam_arguments(
            factor=torch.tensor([0.37]),
            decoupled=decoupled,
            clip_value=clip_value,
            zero_gradients=zero_gradients,
            maximize=maximize,
            adopt=adopt,
        )
        results = {}
        for implementation in ("active", "reference"):
            lists = clone_lists(start)
            operation("adam_step_", implementation)(*lists, **settings)
            if copy is not None and not is_split:
                assert same_bits([w.to(copy) for w in lists[1]], lists[2])
            results[implementation] = [lists[0], joined(*lists[1:3]), *lists[3:]]
        torch.testing.assert_close(*results.values(), **tolerances.SAME_MATHS)
        assert all(torch.equal(a, b + 1) for a, b in zip(lists[5], start[5], strict=True))


@both_implementations
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_steps_are_those_of_torch_optim(implementation: str, decoupled: bool, maximize: bool):
    gradients, weights, copies, means, squares = make_lists(torch.float32, None)
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    cls = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = cls(parameters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, maximize=maximize)
    for moments in (means, squares):
        for moment in moments:
            moment.zero_()
    steps = [torch.zeros(()) for _ in weights]
    settings = adam_arguments(decoupled=decoupled, maximize=maximize)
    for _ in range(5):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        operation("adam_step_", implementation)(
            gradients, weights, copies, means, squares, steps, **settings
        )
    expected = [parameter.detach() for parameter in parameters]
    torch.testing.assert_close(weights, expected, **tolerances.SAME_MATHS)


@requires_kernels
@pytest.mark.parametrize("gradient", FLOATING)
def test_split_masters_move_as_fp32_masters_do(gradient: torch.dtype):
    plain = [*make_lists(gradient, torch.bfloat16), make_steps()]
    split = [*make_lists(gradient, torch.bfloat16, is_split=True), make_steps()]
    for _ in range(3):
        adam_step_(*plain, lr=1e-2, weight_decay=0.1)
        adam_step_(*split, lr=1e-2, weight_decay=0.1)
    assert same_bits(joined(*split[1:3]), plain[1])
    assert same_bits(split[3] + split[4], plain[3] + plain[4])


@both_implementations
@pytest.mark.parametrize(("gradient", "copy", "is_split"), KINDS)
def test_a_skipped_step_changes_no_bit(
    implementation: str, gradient: torch.dtype, copy: torch.dtype | None, is_split: bool
):
    lists = [*make_lists(gradient, copy, is_split=is_split), make_steps()]
    lists[0][0].fill_(math.nan)
    lists[3][1].fill_(math.nan)
    if copy is not None:
        # Not the rounding of its master; as a split master, not the canonical NaN.
        lists[2][4].view(torch.int16).fill_(0x7FC5)
    before = clone_lists(lists)
    settings = adam_arguments(found_inf=torch.tensor([3.0]), zero_gradients=True, adopt=True)
    operation("adam_step_", implementation)(*lists, **settings)
    assert all(map(same_bits, lists, before))


def layouts() -> dict[str, Any]:
    image = torch.randn(4, 3, 8, 7)
    return {
        "channels_last": image.contiguous(memory_format=torch.channels_last),
        "transposed": image.transpose(0, 3).contiguous().transpose(0, 3),
        "strided": torch.randn(4, 3, 8, 14)[..., ::2],
        "expanded": torch.randn(4, 3, 1, 7).expand(4, 3, 8, 7),
        "of size 1": image.as_strided((4, 3, 8, 7), (168, 56, 7, 1)),
    }


@both_implementations
@pytest.mark.parametrize(
    ("layout", "odd"),
    # What is written may not be expanded.
    [(name, odd) for name in layouts() for odd in range(1 if name == "expanded" else 5)],
)
def test_results_do_not_depend_on_memory_layouts(implementation: str, layout: str, odd: int):
    example = layouts()[layout]
    lists = make_lists(torch.float32, torch.bfloat16, shapes=[(4, 3, 8, 7)])
    expected = [*clone_lists(lists), make_steps(1)]
    if odd == 0:
        expected[0] = [example.contiguous()]
    if odd == 0:
        lists[0] = [example]
    else:
        odd_tensor = torch.empty_strided(example.shape, example.stride(), dtype=lists[odd][0].dtype)
        lists[odd] = [odd_tensor.copy_(lists[odd][0])]
    mine = [*lists, make_steps(1)]
    run = operation("adam_step_", implementation)
    run(*expected, **adam_arguments())
    run(*mine, **adam_arguments())
    for found, wanted in zip(mine, expected, strict=True):
        assert same_bits([found[0].contiguous()], wanted)
    assert mine[odd][0].stride() == example.stride()


@both_implementations
def test_rows_that_share_a_layout_may_have_any(implementation: str):
    lists = make_lists(torch.bfloat16, torch.bfloat16, shapes=[(4, 3, 8, 7), (13, 1, 5)])
    expected = [*clone_lists(lists), make_steps(2)]
    mine = [
        [
            items[0].contiguous(memory_format=torch.channels_last),
            # Strides of a dimension of size 1 mean nothing.
            items[1].as_strided((13, 1, 5), (5, 77, 1)),
        ]
        for items in lists
    ]
    mine.append(make_steps(2))
    run = operation("adam_step_", implementation)
    run(*expected, **adam_arguments())
    run(*mine, **adam_arguments())
    assert all(same_bits(a, b) for a, b in zip(mine, expected, strict=True))


@requires_kernels
@pytest.mark.parametrize("shift", [1, 3, 5])
def test_starts_need_not_be_aligned(shift: int):
    lists = make_lists(torch.bfloat16, torch.float16, shapes=[(70001,), (103,)])
    expected = [*clone_lists(lists), make_steps(2)]
    mine = [
        [torch.cat([torch.zeros(shift, dtype=item.dtype), item])[shift:] for item in items]
        for items in lists
    ]
    mine.append(make_steps(2))
    adam_step_(*expected, lr=0.1)
    adam_step_(*mine, lr=0.1)
    assert all(map(same_bits, mine, expected))


@both_implementations
@pytest.mark.parametrize("copy", HALF)
def test_copies_that_somebody_wrote_are_adopted_one_element_at_a_time(
    implementation: str, copy: torch.dtype
):
    lists = [*make_lists(torch.float32, copy, shapes=[(103,)]), make_steps(1)]
    lists[2][0][3] = 2.0
    lists[2][0][64] = -3.0
    expected = clone_lists(lists)
    expected[1][0][3] = 2.0
    expected[1][0][64] = -3.0
    run = operation("adam_step_", implementation)
    run(*expected, **adam_arguments())
    run(*lists, **adam_arguments(adopt=True))
    assert all(map(same_bits, lists, expected))


@both_implementations
def test_lr_may_be_a_tensor_and_flags_have_no_shape(implementation: str):
    lists = [*make_lists(torch.bfloat16, torch.bfloat16), make_steps()]
    expected = clone_lists(lists)
    run = operation("adam_step_", implementation)
    lr = torch.tensor([0.125])
    run(*expected, **adam_arguments(lr=0.125))
    scalars = {"lr_tensor": lr, "lr": 0.0, "found_inf": torch.zeros(1, 1)}
    run(*lists, **adam_arguments(**scalars))
    assert all(map(same_bits, lists, expected))


@both_implementations
def test_a_nan_passes_the_clipping_and_inf_is_clipped(implementation: str):
    lists = [*make_lists(torch.bfloat16, None, shapes=[(37,)]), make_steps(1)]
    lists[0][0][:3] = torch.tensor([math.nan, math.inf, -math.inf])
    operation("adam_step_", implementation)(*lists, **adam_arguments(clip_value=0.5))
    assert lists[1][0].isnan().nonzero().tolist() == [[0]]


@requires_kernels
def test_denormal_moments_stay_exact():
    lists = [*make_lists(torch.float32, None, shapes=[(103,)]), make_steps(1)]
    lists[0][0].zero_()
    lists[3][0].fill_(1e-40)
    lists[4][0].fill_(1e-41)
    operation("adam_step_")(*lists, **adam_arguments())
    expected = torch.full((103,), 1e-41) * 0.99
    assert torch.equal(lists[4][0], expected)
    assert bool((lists[3][0] != 0).all())


@requires_kernels
def test_thousand_small_updates_move_a_bfloat16_weight_as_they_move_fp32():
    for is_split in (False, True):
        lists = make_lists(torch.bfloat16, torch.bfloat16, is_split=is_split, shapes=[(7,)])
        before = joined(*lists[1:3])[0].clone()
        steps = make_steps(1)
        for _ in range(1000):
            lists[0][0].fill_(1.0)
            adam_step_(*lists, steps, lr=1e-4)
        moved = before - joined(*lists[1:3])[0]
        torch.testing.assert_close(moved, torch.full((7,), 0.1), rtol=0.05, atol=0)
        torch.testing.assert_close(
            lists[2][0].float(), joined(*lists[1:3])[0], rtol=2.0**-8, atol=0
        )


def test_writes_are_seen_by_autograd():
    weight = torch.nn.Parameter(torch.ones(3))
    loss = weight.square().sum()
    moments = torch.zeros(2, 3).unbind()
    adam_step_(
        [torch.ones(3)], [weight], [torch.empty(0)], *[[m] for m in moments], make_steps(1), lr=0.1
    )
    assert not weight.grad_fn
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


ERRORS = {
    "exp_avgs has 1 tensors; 2, as weights, is needed": {3: lambda items: items[:1]},
    "steps has 3 tensors; 2, as weights, is needed": {5: lambda items: [*items, items[0]]},
    r"gradients\[1\] has shape \[5\]; \[7\], as weights\[1\], is needed": {
        0: lambda items: [items[0], torch.zeros(5)]
    },
    r"gradients\[0\] is float64; float32 or bfloat16 or float16 is needed": {
        0: lambda items: [items[0].double(), items[1]]
    },
    r"weights\[1\] is bfloat16; float32 or int16 is needed": {
        1: lambda items: [items[0], items[1].bfloat16()]
    },
    r"exp_avg_sqs\[0\] is float16; float32 or bfloat16 is needed": {
        4: lambda items: [items[0].half(), items[1]]
    },
    r"copies\[0\] is float32; bfloat16 or float16 is needed": {
        2: lambda items: [items[0].float(), items[1]]
    },
    r"exp_avgs\[1\] has elements in one place; memory of its own for each is needed": {
        3: lambda items: [items[0], torch.zeros(1).expand(7)]
    },
    r"steps\[1\] is int64 with 1 elements; float32 with 1 element is needed": {
        5: lambda items: [items[0], items[1].long()]
    },
}


@both_implementations
@pytest.mark.parametrize("message", ERRORS)
def test_what_does_not_fit_is_refused_before_anything_is_written(implementation: str, message: str):
    lists = [*make_lists(torch.float32, torch.bfloat16, shapes=[(3,), (7,)]), make_steps(2)]
    for index, change in ERRORS[message].items():
        lists[index] = change(lists[index])
    before = clone_lists(lists)
    with pytest.raises(RuntimeError, match=f"lightning_mp::adam_step_: {message}"):
        operation("adam_step_", implementation)(*lists, **adam_arguments(zero_gradients=True))
    assert all(map(same_bits, lists, before))


@both_implementations
def test_the_half_of_a_split_weight_is_bfloat16(implementation: str):
    lists = [*make_lists(torch.float32, torch.bfloat16, is_split=True, shapes=[(3,)])]
    run = operation("adam_step_", implementation)
    for copy in (lists[2][0].half(), torch.empty(0)):
        with pytest.raises(RuntimeError, match=r"copies\[0\] is \w+; bfloat16, the upper half of"):
            run(*lists[:2], [copy], *lists[3:], make_steps(1), **adam_arguments())


@both_implementations
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -0.1}, "lr = -0.1; a number at least 0 is needed"),
        ({"lr": math.nan}, "lr = nan; a number at least 0 is needed"),
        ({"beta1": 1.0}, "beta1 = 1; a number at least 0 and below 1 is needed"),
        ({"beta2": -0.5}, "beta2 = -0.5; a number at least 0 and below 1 is needed"),
        ({"eps": -1e-8}, "eps = -1e-08; a number at least 0 is needed"),
        ({"weight_decay": -1.0}, "weight_decay = -1; a number at least 0 is needed"),
        ({"clip_value": 0.0}, "clip_value = 0; a number above 0 is needed"),
        ({"factor": torch.ones(2)}, "factor is float32 with 2 elements; float32 with 1 element"),
        ({"found_inf": torch.ones(1).half()}, "found_inf is float16 with 1 elements"),
    ],
)
def test_settings_out_of_range_are_refused(implementation: str, change: Any, message: str):
    lists = [*make_lists(torch.float32, None, shapes=[(3,)]), make_steps(1)]
    before = clone_lists(lists)
    with pytest.raises(RuntimeError, match=message):
        operation("adam_step_", implementation)(*lists, **adam_arguments(**change))
    assert all(map(same_bits, lists, before))

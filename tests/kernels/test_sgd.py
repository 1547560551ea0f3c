"""The step of SGD: both implementations against torch.optim, and against each other."""

import itertools
import math

import pytest
import torch
from support import tolerances
from support.kernels import (
    FLOATING,
    both_implementations,
    clone_lists,
    joined,
    make_lists,
    operation,
    requires_kernels,
    same_bits,
    sgd_arguments,
)

from lightning_mp.kernels.sgd import sgd_step_


@requires_kernels
@pytest.mark.parametrize("gradient", FLOATING)
@pytest.mark.parametrize("copy", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "rule", [{"momentum": 0.0}, {}, {"nesterov": True, "dampening": 0.0}, {"is_first": True}]
)
def test_kernels_give_what_the_reference_gives(
    gradient: torch.dtype, copy: torch.dtype | None, rule: dict[str, float | bool]
):
    start = make_lists(gradient, copy, num_states=1)
    for clip_value, zero, maximize in itertools.product([None, 0.5], [False, True], [False, True]):
        settings = sgd_arguments(
            factor=torch.tensor(0.37),
            clip_value=clip_value,
            zero_gradients=zero,
            maximize=maximize,
            **rule,
        )
        results = []
        for implementation in ("active", "reference"):
            lists = clone_lists(start)
            if rule.get("momentum") == 0.0:
                lists[3] = []
            operation("sgd_step_", implementation)(*lists, **settings)
            if copy is not None:
                assert same_bits([weight.to(copy) for weight in lists[1]], lists.pop(2))
            results.append(lists)
        torch.testing.assert_close(*results, **tolerances.SAME_MATHS)


@both_implementations
@pytest.mark.parametrize(
    "rule",
    [
        {"momentum": 0.0},
        {"momentum": 0.9, "dampening": 0.1},
        {"momentum": 0.9, "nesterov": True, "dampening": 0.0},
        {"momentum": 0.9, "weight_decay": 0.0, "maximize": True},
    ],
)
def test_steps_are_those_of_torch_optim(implementation: str, rule: dict[str, float | bool]):
    gradients, weights, copies, buffers = make_lists(torch.float32, None, num_states=1)
    settings = sgd_arguments(**rule)
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
    optimizer = torch.optim.SGD(parameters, **{name: settings[name] for name in names})
    # A first step must not read what is in the buffers.
    for buffer in buffers:
        buffer.fill_(math.nan)
    for index in range(4):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        states = buffers if rule["momentum"] else []
        operation("sgd_step_", implementation)(
            gradients, weights, copies, states, **{**settings, "is_first": index == 0}
        )
    expected = [parameter.detach() for parameter in parameters]
    torch.testing.assert_close(weights, expected, **tolerances.SAME_MATHS)


@requires_kernels
def test_split_masters_move_as_fp32_masters_do():
    plain = make_lists(torch.bfloat16, torch.bfloat16, num_states=1)
    split = make_lists(torch.bfloat16, torch.bfloat16, is_split=True, num_states=1)
    for lists in (plain, split):
        sgd_step_(*lists, lr=0.01, momentum=0.9, is_first=True)
        sgd_step_(*lists, lr=0.01, momentum=0.9)
    assert same_bits(joined(*split[1:3]), plain[1])
    assert same_bits(split[3], plain[3])


@both_implementations
def test_a_skipped_step_changes_no_bit(implementation: str):
    lists = make_lists(torch.float16, torch.float16, num_states=1)
    lists[0][0].fill_(math.inf)
    before = clone_lists(lists)
    settings = sgd_arguments(found_inf=torch.ones(()), zero_gradients=True, adopt=True)
    operation("sgd_step_", implementation)(*lists, **settings)
    assert all(map(same_bits, lists, before))


@both_implementations
def test_infinite_weights_do_not_reach_gradients_without_decay(implementation: str):
    lists = make_lists(torch.float32, None, num_states=1, shapes=[(37,)])
    lists[1][0][3] = math.inf
    operation("sgd_step_", implementation)(*lists, **sgd_arguments(weight_decay=0.0))
    assert bool(lists[3][0].isfinite().all())


@both_implementations
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -0.1}, "sgd_step_: lr = -0.1; a number at least 0 is needed"),
        ({"momentum": -0.5}, "sgd_step_: momentum = -0.5; a number at least 0 is needed"),
        ({"weight_decay": -1.0}, "sgd_step_: weight_decay = -1; a number at least 0 is needed"),
    ],
)
def test_settings_out_of_range_are_refused(
    implementation: str, change: dict[str, float], message: str
):
    lists = make_lists(torch.float32, None, num_states=1, shapes=[(3,)])
    before = clone_lists(lists)
    with pytest.raises(RuntimeError, match=message):
        operation("sgd_step_", implementation)(*lists, **sgd_arguments(**change))
    with pytest.raises(RuntimeError, match="momentum_buffers has 0 tensors; 1, as weights,"):
        operation("sgd_step_", implementation)(*lists[:3], [], **sgd_arguments())
    assert all(map(same_bits, lists, before))

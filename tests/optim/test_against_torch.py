"""The fused optimizers against their counterparts in torch.optim."""

import copy
from typing import Any

import pytest
import torch
from support import tolerances
from torch import nn
from torch.optim import SGD, Adam, AdamW

from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD

SHAPES = [(7,), (13, 103), (), (0, 3), (2, 3, 5, 7)]

CASES: list[tuple[Any, Any, dict[str, Any]]] = [
    (FusedAdam, Adam, {}),
    (FusedAdam, Adam, {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}),
    (FusedAdam, Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (FusedAdam, Adam, {"maximize": True}),
    (FusedAdamW, AdamW, {}),
    (FusedAdamW, AdamW, {"weight_decay": 0.3, "maximize": True}),
    (FusedAdamW, AdamW, {"lr": torch.tensor(0.05)}),
    (FusedSGD, SGD, {}),
    (FusedSGD, SGD, {"weight_decay": 0.1, "maximize": True}),
    (FusedSGD, SGD, {"momentum": 0.9}),
    (FusedSGD, SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    (FusedSGD, SGD, {"momentum": 0.8, "dampening": 0.3}),
    (FusedSGD, SGD, {"momentum": 0.9, "lr": torch.tensor(0.05)}),
]
PLAIN = [
    (FusedAdam, Adam, {}),
    (FusedAdamW, AdamW, {}),
    (FusedSGD, SGD, {"momentum": 0.9}),
    (FusedSGD, SGD, {"momentum": 0.8, "dampening": 0.3}),
]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    found = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    last = found[-1].detach().contiguous(memory_format=torch.channels_last)
    return [*found[:-1], nn.Parameter(last)]


def set_gradients(*lists: list[nn.Parameter], step: int, skip: int | None = None) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for index, items in enumerate(zip(*lists, strict=True)):
        # In another layout than the channels_last parameter has.
        gradient = torch.randn(items[0].shape, generator=generator)
        for item in items:
            item.grad = None if index == skip else gradient.clone().to(item.dtype)


def run(optimizer: Any, items: list[nn.Parameter], steps: range, **kwargs: Any) -> None:
    for step in steps:
        set_gradients(items, step=step, **kwargs)
        optimizer.step()


def assert_close(first: list[nn.Parameter], second: list[nn.Parameter]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, **tolerances.SAME_MATHS)


def assert_same_states(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["state"].keys() == second["state"].keys()
    for index, entry in first["state"].items():
        assert entry.keys() == second["state"][index].keys()
        for key, value in entry.items():
            other = second["state"][index][key]
            torch.testing.assert_close(value, other, **tolerances.SAME_MATHS)


@pytest.mark.parametrize(("fused", "plain", "options"), CASES)
def test_follows_torch(fused: Any, plain: Any, options: dict[str, Any]) -> None:
    ours, theirs = parameters(), parameters()
    options = {"lr": 0.05, **options}
    ours_step, theirs_step = fused(ours, **options), plain(theirs, **options, foreach=False)
    for step in range(5):
        set_gradients(ours, theirs, step=step, skip=1 if step == 0 else None)
        ours_step.step()
        theirs_step.step()
    assert_close(ours, theirs)
    assert_same_states(ours_step.state_dict(), theirs_step.state_dict())


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
@pytest.mark.parametrize("is_to_torch", [True, False])
def test_state_dicts_are_exchanged(
    fused: Any, plain: Any, options: dict[str, Any], is_to_torch: bool
) -> None:
    first, second = (fused, plain) if is_to_torch else (plain, fused)
    begun, whole = parameters(), parameters()
    begun_step, whole_step = first(begun, lr=0.05, **options), first(whole, lr=0.05, **options)
    run(begun_step, begun, range(3))
    run(whole_step, whole, range(6))
    going_on = parameters(seed=1)
    for item, other in zip(going_on, begun, strict=True):
        item.data.copy_(other.data)
    going_on_step = second(going_on, lr=0.9)
    state = copy.deepcopy(begun_step.state_dict())
    going_on_step.load_state_dict(state)
    assert going_on_step.param_groups[0]["lr"] == 0.05
    run(going_on_step, going_on, range(3, 6))
    assert_close(going_on, whole)
    keys = [set(item.state_dict()["param_groups"][0]) for item in (begun_step, going_on_step)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
def test_groups_have_settings_of_their_own(fused: Any, plain: Any, options: Any) -> None:
    lists = [parameters(), parameters()]
    steps = []
    for cls, items in zip((fused, plain), lists, strict=True):
        groups = [{"params": items[:2], "lr": 0.1}, {"params": items[2:], "weight_decay": 0.2}]
        steps.append(cls(groups, lr=0.05, **options))
    late = [nn.Parameter(torch.ones(103)) for _ in steps]
    for optimizer, items, item in zip(steps, lists, late, strict=True):
        optimizer.add_param_group({"params": [item], "lr": 0.01})
        items.append(item)
    for step in range(3):
        set_gradients(*lists, step=step)
        for optimizer in steps:
            optimizer.step()
    assert_close(*lists)


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
def test_what_has_no_gradient_stays(fused: Any, plain: Any, options: Any) -> None:
    items = parameters()
    items[1].requires_grad_(False)
    before = copy.deepcopy(items)
    optimizer = fused(items, lr=0.05, **options)
    set_gradients(items[:1], step=0)
    optimizer.step()
    assert list(optimizer.state) == items[:1]
    assert not torch.equal(items[0], before[0])
    assert all(torch.equal(*pair) for pair in zip(items[1:], before[1:], strict=True))


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
def test_the_closure_runs_first_and_with_gradients(fused: Any, plain: Any, options: Any) -> None:
    items, twins = parameters()[:2], parameters()[:2]
    losses: list[Any] = []
    for cls, own in ((fused, items), (plain, twins)):
        optimizer = cls(own, lr=0.05, **options)

        def closure(own: list[nn.Parameter] = own, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss: Any = sum((item**2).sum() for item in own)
            loss.backward()
            return loss

        losses.append([float(optimizer.step(closure).detach()) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1])
    assert_close(items, twins)


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_parameters_are_updated_in_full(
    fused: Any, plain: Any, options: Any, dtype: torch.dtype
) -> None:
    items = [nn.Parameter(item.detach().to(dtype)) for item in parameters()]
    optimizer = fused(items, lr=0.05, **options)
    for step in range(2):
        expected = [nn.Parameter(item.detach().float()) for item in items]
        other = plain(expected, lr=0.05, **options)
        set_gradients(items, step=step)
        state = optimizer.state_dict()
        other.load_state_dict(copy.deepcopy(state))
        for item, twin in zip(items, expected, strict=True):
            twin.grad = item.grad.float()
        other.step()
        optimizer.step()
        for item, twin in zip(items, expected, strict=True):
            assert item.dtype == dtype
            # Where the FP32 results are a rounding apart, so may their roundings be.
            torch.testing.assert_close(item, twin.to(dtype), rtol=2.0**-7, atol=1e-6)
        assert_same_states(optimizer.state_dict(), other.state_dict())


@pytest.mark.parametrize(("fused", "plain", "options"), PLAIN)
def test_the_state_of_half_parameters_loads_in_full(fused: Any, plain: Any, options: Any) -> None:
    items = [nn.Parameter(torch.linspace(-1, 1, 103).bfloat16())]
    optimizer = fused(items, lr=0.05, **options)
    run(optimizer, items, range(2))
    loaded = fused([nn.Parameter(items[0].detach().clone())], lr=0.05)
    saved = copy.deepcopy(optimizer.state_dict())
    loaded.load_state_dict(saved)
    for key, value in loaded.state_dict()["state"][0].items():
        assert value.dtype == torch.float32
        assert torch.equal(value, saved["state"][0][key])
        assert value.data_ptr() != saved["state"][0][key].data_ptr() or key == "step"

"""Fused steps under the Apex API: the same weights, fewer passes, gradients that stay half."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import tolerances
from support.engine import Mlp, make_batches
from support.passes import COPY, STATS, STEPS, Passes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from lightning_mp import amp
from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (AdamW, {"lr": 0.01}),
    (Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (SGD, {"lr": 0.05, "momentum": 0.9}),
    (FusedAdamW, {"lr": 0.01}),
    (FusedAdam, {"lr": 0.01}),
    (FusedSGD, {"lr": 0.05, "momentum": 0.9}),
]


def start(
    optimizer_class: Any, options: dict[str, Any], fused: bool = True, **arguments: Any
) -> tuple[nn.Module, Any]:
    model = Mlp()
    optimizer = optimizer_class(model.parameters(), **options)
    return amp.initialize(model, optimizer, opt_level="O2", verbosity=0, fused=fused, **arguments)


def train(
    model: nn.Module,
    optimizer: Any,
    *,
    accumulate: int = 1,
    max_norm: float | None = None,
    with_closure: bool = False,
    bad_step: int | None = None,
) -> list[float]:
    losses = []
    for index, (inputs, targets) in enumerate(make_batches(12)):
        if index % accumulate == 0:
            optimizer.zero_grad()

        def backward(
            inputs: Tensor = inputs, targets: Tensor = targets, index: int = index
        ) -> Tensor:
            loss = F.mse_loss(model(inputs), targets)
            losses.append(float(loss.detach()))
            if index == bad_step:
                loss = loss * math.inf
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            return loss

        if with_closure:
            optimizer.step(backward)
            continue
        backward()
        if (index + 1) % accumulate == 0:
            if max_norm is not None:
                nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), max_norm)
            optimizer.step()
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [item.detach().clone() for item in model.state_dict().values()]


def assert_close(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, **tolerances.SAME_MATHS_TRAINED)


WAYS: list[dict[str, Any]] = [
    {},
    {"accumulate": 3},
    {"max_norm": 0.3},
    {"with_closure": True},
    {"bad_step": 5},
]


@pytest.mark.parametrize(("optimizer_class", "options"), KINDS)
@pytest.mark.parametrize("way", WAYS, ids=["plain", "accumulate", "clip", "closure", "overflow"])
def test_fused_and_own_steps_agree(optimizer_class: Any, options: Any, way: Any) -> None:
    results = []
    for fused in (True, False):
        model, optimizer = start(optimizer_class, options, fused)
        losses = train(model, optimizer, **way)
        results.append((losses, weights(model), optimizer))
    torch.testing.assert_close(*(torch.tensor(item[0]) for item in results), rtol=1e-2, atol=1e-3)
    assert_close(results[0][1], results[1][1])
    first, second = (item[2].state_dict()["state"] for item in results)
    assert first.keys() == second.keys()


def step_from(
    model: nn.Module,
    optimizer: Any,
    before_step: Callable[[], object] = lambda: None,
    *,
    value: float = 1.0,
) -> tuple[list[str], list[str]]:
    """Count the passes from the end of a backward to that of the step: kernels and others."""
    window = amp.scale_loss(model(torch.full((5, 13), value)).sum(), optimizer)
    window.__enter__().backward()
    with Passes() as passes:
        window.__exit__(None, None, None)
    before_step()
    with passes:
        optimizer.step()
    return passes.kernels, passes.others


LEVELS: list[dict[str, Any]] = [
    {"loss_scale": 8.0},
    {"loss_scale": "dynamic"},
    {"half_dtype": torch.bfloat16},
    {"half_dtype": torch.bfloat16, "master_weights": "split"},
]


@pytest.mark.parametrize("arguments", LEVELS, ids=["static", "dynamic", "bf16", "split"])
@pytest.mark.parametrize(("optimizer_class", "options"), KINDS)
def test_a_backward_s_end_and_a_step_are_two_passes(
    optimizer_class: Any, options: Any, arguments: Any
) -> None:
    model, optimizer = start(optimizer_class, options, **arguments)
    train(model, optimizer)
    optimizer.zero_grad()
    (first, second), others = step_from(model, optimizer)
    assert first == COPY
    assert second in STEPS
    assert others == []


def clip(model: nn.Module, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.3)


def scale_model_side(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def replace(model: nn.Module, optimizer: Any) -> None:
    master = next(iter(amp.master_params(optimizer)))
    master.grad = torch.ones_like(master)


def drop(model: nn.Module, optimizer: Any) -> None:
    next(iter(amp.master_params(optimizer))).grad = None


@pytest.mark.parametrize("write", [clip, scale_model_side, replace, drop])
def test_gradients_that_were_written_are_looked_at_again(write: Any) -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    train(model, optimizer)
    optimizer.zero_grad()
    kernels, others = step_from(model, optimizer, lambda: write(model, optimizer))
    assert kernels == [COPY, STATS, STEPS[0]]
    assert others == []


def test_what_somebody_wrote_into_gradients_is_not_stepped_on() -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    train(model, optimizer)
    before = weights(model)

    def spoil() -> None:
        gradient = next(iter(amp.master_params(optimizer))).grad
        assert gradient is not None
        gradient.view(-1)[3] = math.inf

    step_from(model, optimizer, spoil)
    assert all(map(torch.equal, weights(model), before))


def test_an_overflow_that_was_seen_is_not_stepped_on() -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    train(model, optimizer)
    optimizer.zero_grad()
    before = weights(model)
    kernels, _ = step_from(model, optimizer, value=math.inf)
    assert kernels == [COPY, STEPS[0]]
    assert all(map(torch.equal, weights(model), before))


def test_sums_of_backwards_are_looked_at_again() -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    train(model, optimizer)
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.ones(5, 13)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    kernels, _ = step_from(model, optimizer)
    assert kernels == [COPY, STATS, STEPS[0]]


def test_gradients_of_several_processes_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    train(model, optimizer)
    optimizer.zero_grad()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    kernels, _ = step_from(model, optimizer)
    assert kernels == [COPY, STATS, STEPS[0]]


def test_optimizers_of_one_backward_overflow_each_for_itself() -> None:
    models = [nn.Linear(13, 3), nn.Linear(13, 3)]
    optimizers = [AdamW(model.parameters(), lr=0.1) for model in models]
    amp.initialize(models, optimizers, opt_level="O2", loss_scale=8.0, verbosity=0)
    parameters = [item for model in models for item in model.parameters()]
    before = [item.detach().clone() for item in parameters]
    inputs = torch.ones(5, 13)
    loss = models[0](inputs).sum() + models[1](inputs).sum() * math.inf
    with amp.scale_loss(loss, optimizers) as scaled_loss:
        scaled_loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    same = [torch.equal(one, other) for one, other in zip(before, parameters, strict=True)]
    assert same == [False, False, True, True]


def test_a_hook_of_the_users_own_sees_gradients() -> None:
    model, optimizer = start(AdamW, {"lr": 0.01})
    seen: list[bool] = []
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append(
            any(
                item.grad is not None
                for group in optimizer.param_groups
                for item in group["params"]
            )
        )
    )
    train(model, optimizer)
    assert all(seen)
    assert len(seen) == 12


@pytest.mark.parametrize("arguments", [{}, {"half_dtype": torch.bfloat16}, {"loss_scale": 8.0}])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[3]], ids=["plain", "accumulate", "closure"])
def test_gradients_that_are_not_materialized_give_the_same(arguments: Any, way: Any) -> None:
    results = []
    for materialize in (True, False):
        options = {"lr": 0.05, "momentum": 0.9, "materialize_master_grads": materialize}
        model, optimizer = start(FusedSGD, options, **arguments)
        train(model, optimizer, **way)
        results.append(weights(model))
    for one, other in zip(*results, strict=True):
        # Sums of micro-batches are half there.
        torch.testing.assert_close(one, other, **tolerances.HALF_TRAINING)
    if "accumulate" not in way:
        assert all(map(torch.equal, *results))


def test_gradients_that_are_not_materialized_stay_half_and_scaled() -> None:
    options = {"lr": 0.05, "materialize_master_grads": False}
    model, optimizer = start(FusedSGD, options, loss_scale=8.0)
    half = model.first.weight
    with amp.scale_loss(model(torch.ones(5, 13)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert half.grad.dtype == torch.float16
    with Passes() as passes:
        optimizer.step()
    assert passes.kernels == [STEPS[1]]
    assert passes.others == []
    optimizer.zero_grad()
    assert step_from(model, optimizer) == ([STATS, STEPS[1]], [])
    master = next(iter(amp.master_params(optimizer)))
    assert master.grad is None


def test_an_overflow_in_them_is_skipped() -> None:
    options = {"lr": 0.05, "momentum": 0.9, "materialize_master_grads": False}
    model, optimizer = start(FusedSGD, options)
    before = weights(model)
    loss = model(torch.ones(5, 13)).sum() * math.inf
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    assert all(map(torch.equal, weights(model), before))
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15


def test_they_are_unscaled_for_a_step_that_cannot() -> None:
    results = []
    for hooked in (False, True):
        options = {"lr": 0.05, "momentum": 0.9, "materialize_master_grads": False}
        model, optimizer = start(FusedSGD, options)
        if hooked:
            optimizer.register_step_post_hook(lambda *_: None)
        train(model, optimizer)
        results.append(weights(model))
    assert_close(*results)

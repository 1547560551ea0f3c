"""Pass 2 on its own: states and gradients of any dtype give what torch's step gives."""

import copy
from typing import Any

import pytest
import torch
from support import tolerances
from support.engine import Mlp, assert_same, set_gradients, snapshot, start
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from lightning_mp import amp
from lightning_mp.amp.fused_step import apply_fused_step, can_fuse
from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD


def make(optimizer_class: Any = AdamW, **kwargs: Any) -> Any:
    model = Mlp()
    engine, optimizer = start(model, lambda items: optimizer_class(items, lr=0.1, **kwargs))
    return model, engine, optimizer


KINDS: list[tuple[Any, dict[str, Any]]] = [
    (Adam, {"weight_decay": 0.1}),
    (AdamW, {"weight_decay": 0.1}),
    (AdamW, {"maximize": True}),
    (SGD, {"weight_decay": 0.1}),
    (SGD, {"momentum": 0.9, "nesterov": True}),
    (SGD, {"momentum": 0.9, "dampening": 0.5}),
]


@pytest.mark.parametrize(("optimizer_class", "options"), KINDS)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_equals_the_optimizers_own_step(
    optimizer_class: Any, options: dict[str, Any], dtype: torch.dtype | None
) -> None:
    model, engine, optimizer = make(optimizer_class, **options)
    plain = Mlp()
    other = optimizer_class(plain.parameters(), lr=0.1, **options)
    for value in (0.5, -0.25, 1.0):
        for parameter, twin in zip(model.parameters(), plain.parameters(), strict=True):
            parameter.grad = torch.full_like(parameter, 8 * value, dtype=dtype or parameter.dtype)
            twin.grad = torch.full_like(twin, value)
        factor = torch.tensor(0.125)
        apply_fused_step(optimizer, engine.masters, found_inf=torch.zeros(()), factor=factor)
        other.step()
    for parameter, twin in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            engine.masters.of(parameter), twin, **tolerances.SAME_MATHS, check_dtype=True
        )
        assert torch.equal(parameter, engine.masters.of(parameter).to(parameter.dtype))
    assert optimizer._opt_called


def test_gradients_are_not_written() -> None:
    model, engine, optimizer = make()
    set_gradients(model)
    for dtype in (torch.bfloat16, torch.float32):
        model.first.weight.grad = torch.full_like(model.first.weight, 0.5, dtype=dtype)
        before = [item.grad.clone() for item in model.parameters() if item.grad is not None]
        apply_fused_step(
            optimizer,
            engine.masters,
            found_inf=torch.zeros(()),
            factor=torch.tensor(0.25),
            clip_value=0.01,
        )
        after = [item.grad for item in model.parameters() if item.grad is not None]
        assert all(map(torch.equal, before, after))


@pytest.mark.parametrize(("optimizer_class", "options"), KINDS)
def test_states_are_those_of_torch(optimizer_class: Any, options: dict[str, Any]) -> None:
    model, engine, optimizer = make(optimizer_class, **options)
    set_gradients(model)
    apply_fused_step(optimizer, engine.masters, found_inf=torch.zeros(()))
    plain = Mlp()
    set_gradients(plain)
    other = optimizer_class(plain.parameters(), lr=0.1, **options)
    other.step()
    fused, torchs = optimizer.state_dict(), other.state_dict()
    assert fused["param_groups"] == torchs["param_groups"]
    assert fused["state"].keys() == torchs["state"].keys()
    for index, entry in torchs["state"].items():
        assert fused["state"][index].keys() == entry.keys()
        for key, value in entry.items():
            torch.testing.assert_close(fused["state"][index][key], value, **tolerances.SAME_MATHS)
    other.load_state_dict(copy.deepcopy(fused))
    other.step()


def test_parameters_without_gradient_get_no_state() -> None:
    model, engine, optimizer = make()
    model.last.bias.grad = torch.ones_like(model.last.bias)
    apply_fused_step(optimizer, engine.masters, found_inf=torch.zeros(()))
    assert list(optimizer.state) == [model.last.bias]


def subclass_of(optimizer_class: Any) -> Any:
    return type("Own", (optimizer_class,), {})


@pytest.mark.parametrize(
    ("optimizer_class", "kwargs", "expected"),
    [
        (AdamW, {}, True),
        (Adam, {}, True),
        (AdamW, {"fused": True}, True),
        (AdamW, {"foreach": True}, False),
        (AdamW, {"fused": False}, False),
        (AdamW, {"capturable": True}, True),
        (AdamW, {"maximize": True}, True),
        (AdamW, {"amsgrad": True}, False),
        (SGD, {}, True),
        (SGD, {"momentum": 0.9}, True),
        (SGD, {"fused": False}, False),
        (SGD, {"differentiable": True}, False),
        (RMSprop, {}, False),
        (FusedAdam, {}, True),
        (FusedAdamW, {}, True),
        (FusedSGD, {}, True),
        (subclass_of(AdamW), {}, False),
        (subclass_of(FusedAdamW), {}, False),
    ],
)
def test_which_optimizers_are_fused(optimizer_class: Any, kwargs: Any, expected: bool) -> None:
    _, engine, optimizer = make(optimizer_class, **kwargs)
    assert can_fuse(optimizer, engine.masters) is expected


@pytest.mark.parametrize("level", ["O0", "O3-bf16"])
def test_without_masters_nothing_is_fused(level: str) -> None:
    engine, optimizer = start(Mlp(), AdamW, level)
    assert not can_fuse(optimizer, engine.masters)


def test_sparse_gradients_are_not_fused() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    engine, optimizer = start(model, AdamW)
    engine.scale_loss(model(torch.tensor([1])).float().sum()).backward()
    assert not can_fuse(optimizer, engine.masters)


def test_global_hooks_are_heard() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _, engine, optimizer = make()
    handle = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert not can_fuse(optimizer, engine.masters)
    finally:
        handle.remove()
    assert can_fuse(optimizer, engine.masters)


def test_hooks_of_o1_drop_casts_only() -> None:
    _, engine, optimizer = make()
    handle = amp.init()
    try:
        assert can_fuse(optimizer, engine.masters)
    finally:
        handle._deactivate()


def test_an_own_decoupled_adam_is_followed() -> None:
    results = []
    for kind, kwargs in ((Adam, {"decoupled_weight_decay": True}), (AdamW, {})):
        model, engine, optimizer = make(kind, weight_decay=0.3, **kwargs)
        set_gradients(model)
        apply_fused_step(optimizer, engine.masters, found_inf=torch.zeros(()))
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (FusedAdam, Adam, {"weight_decay": 0.1}),
        (FusedAdamW, AdamW, {}),
        (FusedSGD, SGD, {"momentum": 0.9}),
    ],
)
def test_ours_and_torchs_are_the_same_step(ours: Any, theirs: Any, options: Any) -> None:
    results = []
    for optimizer_class in (ours, theirs):
        model, engine, optimizer = make(optimizer_class, **options)
        for _ in range(3):
            set_gradients(model)
            engine.step(optimizer)
        assert engine.step_of(optimizer).path == "fast"
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


def test_writes_from_outside_are_adopted_element_by_element() -> None:
    model, engine, optimizer = make(SGD)
    weight = model.first.weight
    set_gradients(model, 0.0)
    before = engine.masters.of(weight).detach().clone()
    weight.data[3, 5] = 7.0
    apply_fused_step(optimizer, engine.masters, found_inf=torch.ones(()))
    assert torch.equal(engine.masters.of(weight), before)
    apply_fused_step(optimizer, engine.masters, found_inf=torch.zeros(()))
    before[3, 5] = 7.0
    assert torch.equal(engine.masters.of(weight), before)


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_the_option_turns_it_off(optimizer_class: Any) -> None:
    model = Mlp()
    engine, optimizer = start(model, lambda items: optimizer_class(items, lr=0.1), fused=False)
    set_gradients(model)
    engine.step(optimizer)
    assert engine.step_of(optimizer).path == "plain"

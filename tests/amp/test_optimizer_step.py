"""The three paths of a step give the same result and never let an overflow through."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from support import tolerances
from support.engine import (
    ConvNet,
    Mlp,
    assert_same,
    backward,
    make_batches,
    make_engine,
    set_gradients,
    snapshot,
    start,
    train,
    train_plain,
)
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.amp.gradient_clip import ClipRule
from lightning_mp.amp.overflow import LossScaleCollapseWarning

CLIPS = {
    "none": None,
    "norm": ClipRule(max_norm=0.5),
    "value": ClipRule(clip_value=0.02),
    "inf": ClipRule(max_norm=0.05, norm_type=math.inf),
    "one": ClipRule(max_norm=1.0, norm_type=1.0),
}
MODELS = {"mlp": (Mlp, 13), "conv": (ConvNet, 75)}


def run(
    level: str,
    *,
    is_looked: bool,
    clip: ClipRule | None = None,
    accumulate: int = 1,
    optimizer_class: Any = AdamW,
    model_name: str = "mlp",
    has_groups: bool = False,
) -> tuple[list[float], dict[str, Tensor], str]:
    model_class, num_inputs = MODELS[model_name]
    model = model_class()
    engine = make_engine(level)
    engine.convert(model)
    parameters: list[Any] = list(model.parameters())
    if has_groups:
        parameters = [
            {"params": parameters[:3], "lr": 3e-3, "betas": (0.8, 0.95), "weight_decay": 0.1},
            {"params": parameters[3:], "eps": 1e-6},
        ]
    optimizer = optimizer_class(parameters, lr=1e-2, weight_decay=0.01)
    engine.attach([optimizer])
    step = engine.step_of(optimizer)

    def before_update() -> None:
        if clip is not None:
            step.clip(clip)

    batches = make_batches(12, num_inputs)
    losses = train(
        engine,
        model,
        optimizer,
        batches,
        before_update=before_update,
        is_looked=is_looked,
        accumulate=accumulate,
    )
    return losses, snapshot(engine, model, optimizer), step.path


@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", CLIPS)
def test_looking_changes_no_bit(level: str, accumulate: int, clip: str) -> None:
    arguments = {"clip": CLIPS[clip], "accumulate": accumulate}
    fast = run(level, is_looked=False, **arguments)
    looked = run(level, is_looked=True, **arguments)
    assert (fast[2], looked[2]) == ("fast", "looked")
    assert fast[0] == looked[0]
    assert_same(fast[1], looked[1])


@pytest.mark.parametrize("optimizer_class", [Adam, AdamW])
@pytest.mark.parametrize(("model_name", "has_groups"), [("mlp", True), ("conv", False)])
def test_looking_changes_no_bit_for(
    optimizer_class: Any, model_name: str, has_groups: bool
) -> None:
    arguments: Any = {
        "clip": CLIPS["norm"],
        "optimizer_class": optimizer_class,
        "model_name": model_name,
        "has_groups": has_groups,
    }
    fast = run("O2-fp16", is_looked=False, **arguments)
    looked = run("O2-fp16", is_looked=True, **arguments)
    assert fast[0] == looked[0]
    assert_same(fast[1], looked[1])


@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("optimizer_class", [Adam, AdamW])
def test_fused_update_equals_the_for_loop(
    level: str, model_name: str, optimizer_class: Any
) -> None:
    fused = run(level, is_looked=False, optimizer_class=optimizer_class, model_name=model_name)
    loop = run(
        level,
        is_looked=False,
        optimizer_class=partial(optimizer_class, foreach=False, fused=False),
        model_name=model_name,
    )
    assert (fused[2], loop[2]) == ("fast", "plain")
    for name, value in fused[1].items():
        if not name.endswith(".half"):
            torch.testing.assert_close(value, loop[1][name], **tolerances.SAME_MATHS)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        partial(SGD, lr=0.05, momentum=0.9),
        partial(SGD, lr=0.05, momentum=0.9, fused=True),
        partial(AdamW, lr=1e-2, amsgrad=True),
        partial(AdamW, lr=1e-2, fused=True),
        partial(torch.optim.RMSprop, lr=1e-3),
        partial(torch.optim.Adagrad, lr=1e-2, fused=True),
    ],
)
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
def test_training_follows_fp32(level: str, make_optimizer: Any) -> None:
    batches = make_batches(30)
    plain, half = Mlp(), Mlp()
    expected = train_plain(plain, make_optimizer(plain.parameters()), batches)
    engine, optimizer = start(half, make_optimizer, level, init_scale=2.0**10)
    losses = train(engine, half, optimizer, batches)
    assert engine.skipped_steps == 0
    torch.testing.assert_close(
        torch.tensor(losses), torch.tensor(expected), **tolerances.HALF_TRAINING
    )


@pytest.mark.parametrize("optimizer_class", [SGD, Adam, AdamW])
def test_o0_equals_a_plain_loop(optimizer_class: Any) -> None:
    batches = make_batches(9)
    plain, model = Mlp(), Mlp()
    expected = train_plain(plain, optimizer_class(plain.parameters(), lr=1e-2), batches)
    engine, optimizer = start(model, partial(optimizer_class, lr=1e-2), "O0")
    assert train(engine, model, optimizer, batches) == expected
    assert_same(dict(model.named_parameters()), dict(plain.named_parameters()))


@pytest.mark.parametrize("level", ["O3-fp16", "O3-bf16"])
def test_o3_steps_in_half_and_clips_in_fp32(level: str) -> None:
    model = nn.Linear(13, 7)
    engine, optimizer = start(model, partial(SGD, lr=0.5), level)
    seen: list[torch.dtype] = []
    step = engine.step_of(optimizer)

    def clip() -> None:
        step.clip(ClipRule(max_norm=1e-3))
        assert model.weight.grad is not None
        seen.append(model.weight.grad.dtype)

    set_gradients(model, 2.0)
    before = model.weight.detach().clone()
    engine.step(optimizer, clip)
    assert seen == [torch.float32]
    assert model.weight.dtype == before.dtype == engine.properties.half_dtype
    assert engine.masters.of(model.weight) is model.weight
    norm = (1e-3 / math.sqrt(model.weight.numel() + model.bias.numel())) * 0.5
    expected = (before.float() - norm).to(before.dtype)
    torch.testing.assert_close(model.weight.detach(), expected)


POSITIONS = [(0, 0), (0, 110), (0, 220), (3, 8), (7, 0), (7, 2)]


@pytest.mark.parametrize(("index", "element"), POSITIONS)
@pytest.mark.parametrize("value", [-math.inf, math.nan])
@pytest.mark.parametrize("make_optimizer", [AdamW, Adam, SGD, partial(SGD, fused=True)])
@pytest.mark.parametrize("level", ["O2-fp16", "O2-bf16"])
def test_a_non_finite_element_changes_nothing(
    index: int, element: int, value: float, make_optimizer: Any, level: str
) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(make_optimizer, lr=0.1), level)
    train(engine, model, optimizer, make_batches(2))
    set_gradients(model)
    gradient = list(model.parameters())[index].grad
    assert gradient is not None
    gradient.view(-1)[element] = value
    before = snapshot(engine, model, optimizer)
    skipped = engine.skipped_steps
    engine.step(optimizer)
    assert_same(snapshot(engine, model, optimizer), before)
    assert engine.skipped_steps == skipped + 1
    assert float(engine.found_inf) == 1.0


@pytest.mark.parametrize("level", ["O0", "O3-fp16", "O3-bf16"])
@pytest.mark.parametrize(
    "make_optimizer", [partial(AdamW, eps=1e-4), SGD, partial(AdamW, eps=1e-4, fused=True)]
)
def test_an_overflow_changes_nothing_at_other_levels(level: str, make_optimizer: Any) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(make_optimizer, lr=0.1), level)
    set_gradients(model)
    assert model.last.bias.grad is not None
    model.last.bias.grad[1] = math.nan
    before = copy.deepcopy(model.state_dict())
    engine.step(optimizer)
    assert_same(model.state_dict(), before)
    assert engine.skipped_steps == 1


@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
def test_three_thousand_nan_steps(optimizer_class: Any) -> None:
    model = nn.Linear(3, 2)
    engine, optimizer = start(model, partial(optimizer_class, lr=0.1), "O2-fp16")
    before = copy.deepcopy(model.state_dict())
    loss = torch.zeros((), requires_grad=True)

    def train_on_nan() -> None:
        for _ in range(3000):
            engine.scale_loss(loss)
            set_gradients(model, math.nan)
            engine.step(optimizer)

    with pytest.warns(LossScaleCollapseWarning, match="'weight'") as caught:
        train_on_nan()
    assert len(caught) == 1
    assert_same(model.state_dict(), before)
    assert engine.loss_scale == 2.0**-10
    assert engine.skipped_steps == 3000


class _NoHostRead(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        ), "the host waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("clip", [*CLIPS])
def test_the_fast_path_never_reads_a_value(clip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mlp()
    engine, optimizer = start(model, AdamW, "O2-fp16")
    step, rule = engine.step_of(optimizer), CLIPS[clip]
    train(engine, model, optimizer, make_batches(2))
    for batch in make_batches(3):
        optimizer.zero_grad()
        backward(engine, model, batch)
        # On an accelerator the flag of a step is not there yet when the step ends.
        monkeypatch.setattr("lightning_mp.amp.host_flag.HostFlag.is_ready", lambda _: False)
        with _NoHostRead():
            engine.step(optimizer, partial(step.clip, rule) if rule else None, is_looked=False)
    assert step.path == "fast"


@pytest.mark.parametrize("is_looked", [False, True])
@pytest.mark.parametrize("optimizer_class", [AdamW, SGD])
@pytest.mark.parametrize("has_masters_as_gradients", [False, True])
def test_gradients_of_other_strides(
    optimizer_class: Any, is_looked: bool, has_masters_as_gradients: bool
) -> None:
    results = []
    for fused in (True, False):
        model = nn.Linear(7, 5)
        torch.manual_seed(0)
        nn.init.normal_(model.weight)
        engine, optimizer = start(
            model, partial(optimizer_class, lr=0.1, fused=fused, foreach=False)
        )
        gradient = torch.arange(35.0).view(7, 5).t()
        dtype = torch.float32 if has_masters_as_gradients else torch.bfloat16
        model.weight.grad = gradient.to(dtype)
        assert model.weight.grad.stride() == (1, 5)
        engine.step(optimizer, is_looked=is_looked)
        results.append(engine.masters.of(model.weight).detach())
    torch.testing.assert_close(*results, **tolerances.SAME_MATHS)


def test_fused_optimizers_skip_by_themselves_and_keep_no_attribute() -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(SGD, lr=0.1, momentum=0.9, fused=True), "O2-fp16")
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append((optimizer.grad_scale, optimizer.found_inf))
    )
    train(engine, model, optimizer, make_batches(1))
    [(grad_scale, found_inf)] = seen
    assert grad_scale is None
    assert torch.equal(found_inf, engine.found_inf)
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize(
    ("change", "is_fused"),
    [
        (lambda optimizer: None, True),
        (lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1), True),
        (lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None), False),
        (lambda optimizer: optimizer.register_step_post_hook(lambda *_: None), False),
        (lambda optimizer: optimizer.param_groups[0].update(amsgrad=True), False),
        (lambda optimizer: optimizer.param_groups[0].update(differentiable=True), False),
        (lambda optimizer: optimizer.param_groups[0].update(fused=False), False),
    ],
)
def test_only_a_plain_adam_is_fused(change: Any, is_fused: bool) -> None:
    _, optimizer = (pair := start(Mlp(), AdamW))
    change(optimizer)
    assert pair[0].step_of(optimizer).can_fuse is is_fused


def test_a_wrapped_step_is_called() -> None:
    model = Mlp()
    engine, optimizer = start(model, AdamW)
    calls: list[int] = []
    original = optimizer.step

    def step(self: Optimizer) -> None:
        calls.append(1)
        original()

    optimizer.step = step.__get__(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(engine, model, optimizer, make_batches(1))
    scheduler.step()
    assert calls == [1]


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_learning_rate_may_be_a_tensor(lr: Any) -> None:
    model = Mlp()
    engine, optimizer = start(model, partial(AdamW, lr=lr))
    set_gradients(model)
    before = model.first.bias.detach().clone()
    engine.step(optimizer)
    assert engine.step_of(optimizer).path == "fast"
    torch.testing.assert_close(model.first.bias.detach(), (before * (1 - 1e-3) - 0.1).bfloat16())

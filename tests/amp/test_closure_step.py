"""Optimizers that evaluate the closure themselves, at a static scale."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import tolerances
from support.engine import Mlp, assert_same, make_batches, snapshot, start
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from lightning_mp.amp.closure_step import ClosureStep, evaluates_closure, needs_closure
from lightning_mp.amp.gradient_clip import ClipRule

MakeClosure = Callable[[], Callable[[], Tensor]]


class SharpnessAware(Optimizer):
    """Moves to the sharpest point nearby, evaluates there, and steps from where it was."""

    def __init__(
        self, parameters: Any, base: Any, rho: float = 0.05, *, evaluates_first: bool = True
    ) -> None:
        super().__init__(parameters, {"rho": rho})
        self.base = base(self.param_groups)
        self.param_groups = self.base.param_groups
        self.evaluates_first = evaluates_first

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure = torch.enable_grad()(closure)
        if self.evaluates_first:
            closure()
        items = [item for group in self.param_groups for item in group["params"]]
        with_gradient = [item for item in items if item.grad is not None]
        assert with_gradient
        norm = torch.stack([item.grad.norm() for item in with_gradient]).norm()
        moves = [item.grad * (0.05 / (norm + 1e-12)) for item in with_gradient]
        for item, move in zip(with_gradient, moves, strict=True):
            item.add_(move)
        loss = closure()
        for item, move in zip(with_gradient, moves, strict=True):
            item.sub_(move)
        self.base.step()
        return loss


class Deaf(SGD):
    """Ignores its closure."""

    def step(self, closure: Any = None) -> None:
        super().step()


def make_problem(make_optimizer: Any, level: str = "O2-bf16", scale: float = 1.0) -> Any:
    model = nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    engine, optimizer = start(model, make_optimizer, level, loss_scale=scale)
    evaluations: list[float] = []
    bad: set[int] = set()
    inputs, targets = make_batches(1, batch_size=31)[0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        with engine.forward_context():
            loss = nn.functional.mse_loss(model(inputs), targets)
        evaluations.append(float(loss.detach()))
        if len(evaluations) - 1 in bad:
            loss = loss * math.inf
        engine.scale_loss(loss).backward()
        return loss.detach()

    return model, engine, optimizer, closure, evaluations, bad


def run(engine: Any, optimizer: Optimizer, closure: Any, hook: Any = lambda: None) -> Any:
    step = engine.step_of(optimizer)
    result = ClosureStep(step, engine.masters).run(closure, hook)
    engine.after_step(optimizer, num_steps=0)
    return result


LBFGS_KINDS = [
    partial(LBFGS, max_iter=5),
    partial(LBFGS, max_iter=5, line_search_fn="strong_wolfe"),
]
SAMS = [
    partial(SharpnessAware, base=partial(SGD, lr=0.1, momentum=0.9)),
    partial(SharpnessAware, base=partial(AdamW, lr=0.01)),
]


@pytest.mark.parametrize("make_optimizer", [*LBFGS_KINDS, *SAMS])
@pytest.mark.parametrize(("level", "scale"), [("O2-bf16", 1.0), ("O2-fp16", 128.0), ("O0", 1.0)])
def test_training_follows_fp32(make_optimizer: Any, level: str, scale: float) -> None:
    finals = []
    for name, factor in ((level, scale), ("O0", 1.0)):
        _, engine, optimizer, closure, losses, _ = make_problem(make_optimizer, name, factor)
        for _ in range(8):
            run(engine, optimizer, closure)
        finals.append(losses[-1])
        assert losses[-1] < losses[0]
        assert engine.skipped_steps == 0
    torch.testing.assert_close(
        torch.tensor(finals[0]), torch.tensor(finals[1]), **tolerances.HALF_TRAINING
    )


@pytest.mark.parametrize("make_optimizer", LBFGS_KINDS)
def test_o0_equals_plain_torch(make_optimizer: Any) -> None:
    _, engine, optimizer, closure, losses, _ = make_problem(make_optimizer, "O0")
    plain, _, _, _, _, _ = make_problem(make_optimizer, "O0")
    other = make_optimizer(plain.parameters())
    inputs, targets = make_batches(1, batch_size=31)[0]
    expected: list[float] = []

    def plain_closure() -> Tensor:
        other.zero_grad()
        loss = nn.functional.mse_loss(plain(inputs), targets)
        expected.append(float(loss.detach()))
        loss.backward()
        return loss

    for _ in range(4):
        run(engine, optimizer, closure)
        other.step(plain_closure)
    assert losses == expected


@pytest.mark.parametrize("make_optimizer", [*LBFGS_KINDS, *SAMS])
@pytest.mark.parametrize("when", [0, 1])
def test_an_overflow_changes_no_weight(make_optimizer: Any, when: int) -> None:
    model, engine, optimizer, closure, losses, bad = make_problem(make_optimizer)
    run(engine, optimizer, closure)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    has_line_search = optimizer.param_groups[0].get("line_search_fn") is not None
    bad.add(len(losses) + when)
    run(engine, optimizer, closure)
    if when == 1 and has_line_search:
        assert all(value.isfinite().all() for value in model.state_dict().values())
        return
    assert_same(dict(model.state_dict()), before)
    assert engine.skipped_steps == 1
    assert float(engine.found_inf) == 1.0
    # It is not stuck: the next steps are good ones.
    for _ in range(3):
        run(engine, optimizer, closure)
    assert engine.skipped_steps == 1
    assert losses[-1] < losses[0]
    assert not any(value.isnan().any() for value in model.state_dict().values())


def test_all_trials_of_a_line_search_overflow() -> None:
    model, engine, optimizer, closure, losses, bad = make_problem(LBFGS_KINDS[1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bad.update(range(1, 200))
    run(engine, optimizer, closure)
    after = dict(model.state_dict())
    assert all(value.isfinite().all() for value in after.values())
    bad.clear()
    run(engine, optimizer, closure)
    assert losses[-1] <= losses[0]
    assert before.keys() == after.keys()


@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_gradients_of_a_backward_before_the_step_are_seen(scale: float) -> None:
    """Manual optimisation: backward, then step(closure), as the first SAM does it."""
    make_optimizer = partial(SharpnessAware, base=partial(SGD, lr=0.1), evaluates_first=False)
    weights = []
    for level, factor in (("O2-bf16", scale), ("O0", 1.0)):
        model, engine, optimizer, closure, _, _ = make_problem(make_optimizer, level, factor)
        for _ in range(3):
            closure()
            run(engine, optimizer, closure)
        weights.append(model.state_dict()["0.weight"])
    torch.testing.assert_close(*weights, **tolerances.HALF_TRAINING)


@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_a_closure_that_is_not_called(scale: float) -> None:
    model, engine, optimizer, closure, losses, _ = make_problem(partial(Deaf, lr=0.1), scale=scale)
    before = snapshot(engine, model, optimizer)
    run(engine, optimizer, closure)
    assert not losses
    assert_same(snapshot(engine, model, optimizer), before)
    assert engine.overflows(wait=True) == []
    closure()
    run(engine, optimizer, closure)
    assert not torch.equal(engine.masters.of(model[0].weight), before["0.weight.master"])
    before = snapshot(engine, model, optimizer)
    model[0].weight.grad.fill_(math.nan)
    run(engine, optimizer, closure)
    assert_same(snapshot(engine, model, optimizer), before)


@pytest.mark.parametrize("make_optimizer", [*LBFGS_KINDS, *SAMS])
def test_hooks_run_after_every_evaluation_with_the_masters_in(make_optimizer: Any) -> None:
    model, engine, optimizer, closure, losses, _ = make_problem(make_optimizer, scale=16.0)
    masters = [engine.masters.of(item) for item in model.parameters()]
    norms: list[float] = []

    def hook() -> None:
        held = optimizer.param_groups[0]["params"]
        assert all(item is master for item, master in zip(held, masters, strict=True))
        engine.step_of(optimizer).clip(ClipRule(max_norm=0.01))
        norms.append(float(torch.stack([item.grad.norm() for item in masters]).norm()))

    run(engine, optimizer, closure, hook)
    assert len(norms) == len(losses) > 1
    assert max(norms) <= 0.01 * (1 + 1e-4)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


def test_an_exception_in_the_closure_leaves_the_optimizer_usable() -> None:
    model, engine, optimizer, closure, _, _ = make_problem(LBFGS_KINDS[0])

    def fail() -> Tensor:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        run(engine, optimizer, fail)
    assert [id(item) for item in optimizer.param_groups[0]["params"]] == [
        id(item) for item in model.parameters()
    ]
    run(engine, optimizer, closure)


@pytest.mark.parametrize(
    ("optimizer_class", "expected"),
    [(LBFGS, True), (SGD, False), (AdamW, False), (SharpnessAware, True), (Deaf, True)],
)
def test_who_evaluates_closures(optimizer_class: Any, expected: bool) -> None:
    kwargs = {"base": partial(SGD, lr=0.1)} if optimizer_class is SharpnessAware else {}
    optimizer = optimizer_class(Mlp().parameters(), **kwargs)
    assert evaluates_closure(optimizer) is expected


class Lion(Optimizer):
    """An ordinary third-party optimizer: one evaluation, at the start."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for item in group["params"]:
                item.add_(item.grad.sign(), alpha=-group["lr"])
        return loss


@pytest.mark.parametrize(
    ("make_optimizer", "expected"),
    [(partial(Lion, lr=0.01), True), (LBFGS_KINDS[0], False), (SAMS[0], False), (Deaf, False)],
)
def test_weights_are_copied_only_for_those_that_move_them_midway(
    make_optimizer: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine, optimizer, closure, _, _ = make_problem(make_optimizer)
    copies = []
    snapshot_method = ClosureStep._snapshot
    monkeypatch.setattr(
        ClosureStep, "_snapshot", lambda self: copies.append(1) or snapshot_method(self)
    )
    for _ in range(3):
        run(engine, optimizer, closure)
    assert engine.step_of(optimizer).evaluates_at_start is expected
    assert len(copies) == (1 if expected else 3)


def test_an_overflow_of_one_evaluation_is_skipped_without_a_copy() -> None:
    model, engine, optimizer, closure, evaluations, bad = make_problem(partial(Lion, lr=0.01))
    for _ in range(2):
        run(engine, optimizer, closure)
    before = snapshot(engine, model, optimizer)
    bad.add(len(evaluations))
    run(engine, optimizer, closure)
    assert_same(snapshot(engine, model, optimizer), before)
    assert engine.skipped_steps == 1


class Demanding(SGD):
    """Cannot step without a closure."""

    def step(self, closure: Any) -> Any:
        return super().step(closure)


@pytest.mark.parametrize(
    ("optimizer_class", "expected"),
    [(SGD, False), (AdamW, False), (Demanding, True), (LBFGS, True)],
)
def test_who_needs_a_closure(optimizer_class: Any, expected: bool) -> None:
    optimizer = optimizer_class([nn.Parameter(torch.ones(3))], lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    assert needs_closure(optimizer) is expected

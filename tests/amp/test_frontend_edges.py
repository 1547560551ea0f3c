"""What existing loops do off the beaten track: the Apex API follows, or says what to do instead."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.engine import Mlp, make_batches
from support.host_reads import HostReads
from support.tolerances import HALF_TRAINING, SAME_MATHS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from lightning_mp import amp
from lightning_mp.amp._amp_state import _amp_state
from lightning_mp.amp.host_flag import HostFlag

LEVELS = ["O0", "O1", "O2", "O3"]


def start(
    level: str, make: Any = SGD, loss_scale: Any = "dynamic", **kwargs: Any
) -> tuple[Mlp, Optimizer]:
    model = Mlp()
    options: dict[str, Any] = {"half_dtype": torch.bfloat16, "verbosity": 0, **kwargs}
    return amp.initialize(
        model,
        make(model.parameters(), lr=0.1),
        opt_level=level,
        loss_scale=loss_scale,
        **options,
    )


def backward(model: nn.Module, optimizers: Any, index: int = 0, **kwargs: Any) -> None:
    inputs, targets = make_batches(9)[index]
    model.num_calls = 0
    factor = kwargs.pop("factor", 1.0)
    loss = F.mse_loss(model(inputs).float(), targets) * factor
    with amp.scale_loss(loss, optimizers, **kwargs) as scaled_loss:
        scaled_loss.backward()


def gradients(optimizer: Optimizer) -> list[Tensor]:
    return [item.grad.clone() for item in amp.master_params(optimizer) if item.grad is not None]


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_raises_loses_no_bit(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer)
    handle = optimizer.register_step_post_hook(_fail)
    # Before the engine's own hook, as a failure inside the step would be.
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)
    with pytest.raises(KeyError, match="by test"):
        optimizer.step()
    handle.remove()
    expected = [item.detach().clone() for item in amp.master_params(optimizer)]
    optimizer.zero_grad()
    optimizer.step()
    for found, wanted in zip(amp.master_params(optimizer), expected, strict=True):
        assert torch.equal(found, wanted)
    for parameter, master in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, master.to(parameter.dtype))


def _fail(*_: Any) -> None:
    raise KeyError("by test")


@pytest.mark.parametrize("side", ["model", "master"])
@pytest.mark.parametrize("what", ["replaced", "dropped"])
def test_what_is_done_to_a_gradient_on_either_side_counts(side: str, what: str) -> None:
    model, optimizer = start("O2")
    backward(model, optimizer)
    targets = model.parameters() if side == "model" else amp.master_params(optimizer)
    target = next(iter(targets))
    before = [item.detach().clone() for item in amp.master_params(optimizer)]
    gradient = torch.full(target.shape, 0.5, dtype=target.dtype)
    target.grad = gradient if what == "replaced" else None
    optimizer.step()
    moved = [old - new for old, new in zip(before, amp.master_params(optimizer), strict=True)]
    expected = 0.05 if what == "replaced" else 0.0
    torch.testing.assert_close(moved[0], torch.full_like(moved[0], expected), **SAME_MATHS)
    assert moved[1].abs().max() > 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("whose", ["model", "optimizer"])
@pytest.mark.parametrize("delay_unscale", [False, True])
def test_gradients_zeroed_before_a_step_are_gone(
    level: str, set_to_none: bool, whose: str, delay_unscale: bool
) -> None:
    model, optimizer = start(level)
    backward(model, optimizer, 1, delay_unscale=delay_unscale)
    zeroed: Any = model if whose == "model" else optimizer
    zeroed.zero_grad(set_to_none=set_to_none)
    backward(model, optimizer, 0)
    found = gradients(optimizer)
    fresh_model, fresh_optimizer = start(level)
    backward(fresh_model, fresh_optimizer, 0)
    for one, other in zip(found, gradients(fresh_optimizer), strict=True):
        torch.testing.assert_close(one, other, **SAME_MATHS)


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_keeps_what_was_delayed(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer, 0, delay_unscale=True)
    loss = model(make_batches(9)[3][0]).float().sum()
    handle = model.first.weight.register_post_accumulate_grad_hook(_fail)
    with (
        pytest.raises(KeyError, match="by test"),
        amp.scale_loss(loss, optimizer) as scaled_loss,
    ):
        scaled_loss.backward()
    handle.remove()
    backward(model, optimizer, 1)
    twin, twin_optimizer = start(level)
    backward(twin, twin_optimizer, 0, delay_unscale=True)
    backward(twin, twin_optimizer, 1)
    for one, other in zip(gradients(optimizer), gradients(twin_optimizer), strict=True):
        torch.testing.assert_close(one, other, **SAME_MATHS)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_backward_without_scale_loss_is_refused(level: str) -> None:
    model, optimizer = start(level, loss_scale=128.0)
    before = [item.detach().clone() for item in amp.master_params(optimizer)]
    F.mse_loss(model(make_batches(1)[0][0]), make_batches(1)[0][1]).backward()
    if level == "O3":
        optimizer.step()
        return
    with pytest.raises(RuntimeError, match=r"with amp\.scale_loss\(loss, optimizer\)"):
        optimizer.step()
    for found, wanted in zip(amp.master_params(optimizer), before, strict=True):
        assert torch.equal(found, wanted)


def test_a_later_backward_without_scale_loss_is_refused() -> None:
    model, optimizer = start("O2", loss_scale=128.0)
    backward(model, optimizer)
    optimizer.step()
    # The gradient of a step stays at the model's parameters, and autograd adds to it.
    optimizer.zero_grad()
    optimizer.step()
    model.zero_grad(set_to_none=False)
    optimizer.step()
    before = [item.detach().clone() for item in amp.master_params(optimizer)]
    F.mse_loss(model(make_batches(1)[0][0]), make_batches(1)[0][1]).backward()
    with pytest.raises(RuntimeError, match=r"with amp\.scale_loss\(loss, optimizer\)"):
        optimizer.step()
    assert_equal(amp.master_params(optimizer), before)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_on_scaled_gradients_is_refused(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer, delay_unscale=True)
    before = [item.detach().clone() for item in amp.master_params(optimizer)]
    with pytest.raises(RuntimeError, match=r"gradients that are still scaled.*delay_unscale"):
        optimizer.step()
    assert_equal(amp.master_params(optimizer), before)
    backward(model, optimizer)
    optimizer.step()
    assert not torch.equal(next(amp.master_params(optimizer)), before[0])


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_of_an_optimizer_is_an_ordinary_one(level: str, how: str) -> None:
    model, optimizer = start(level, AdamW)
    backward(model, optimizer)
    optimizer.step()
    expected = [item.detach().clone() for item in amp.master_params(optimizer)]
    twin = COPIES[how](optimizer)
    assert not twin._optimizer_step_pre_hooks
    for parameter in amp.master_params(twin):
        parameter.grad = torch.ones_like(parameter)
    twin.step()
    assert_equal(amp.master_params(optimizer), expected)
    assert len(twin.state) == len(optimizer.state) == len(expected)
    assert not torch.equal(next(amp.master_params(twin)), expected[0])
    dtype = torch.bfloat16 if level == "O3" else torch.float32
    assert next(amp.master_params(twin)).dtype == dtype


def _saved(optimizer: Optimizer) -> Optimizer:
    buffer = io.BytesIO()
    torch.save(optimizer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[Optimizer], Optimizer]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "save": _saved,
}


def assert_equal(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_two_optimizers_may_share_a_parameter(level: str) -> None:
    model, plain = Mlp(), Mlp()
    shared = list(model.first.parameters())
    pair = [SGD([*shared, *model.last.parameters()], lr=0.1), SGD(shared, lr=0.01)]
    model, pair = amp.initialize(
        model, pair, opt_level=level, half_dtype=torch.bfloat16, loss_scale=128.0, verbosity=0
    )
    for index in range(2):
        backward(model, pair, index)
        plain.num_calls = 0
        F.mse_loss(plain(make_batches(9)[index][0]), make_batches(9)[index][1]).backward()
    for found, wanted in zip(
        pair[1].param_groups[0]["params"], plain.first.parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad.float(), wanted.grad, **HALF_TRAINING)


@pytest.mark.parametrize("level", LEVELS)
def test_scale_loss_inside_another_is_refused(level: str) -> None:
    model, optimizer = start(level, num_losses=2)
    loss = model(make_batches(1)[0][0]).float().sum()
    with (
        pytest.raises(RuntimeError, match="inside another"),
        amp.scale_loss(loss, optimizer),
        amp.scale_loss(loss, optimizer, loss_id=1),
    ):
        pass
    backward(model, optimizer)
    assert gradients(optimizer)


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_set_up_before_can_be_freed(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer)
    optimizer.step()
    gone = weakref.ref(model.first.weight), weakref.ref(optimizer)
    start(level)
    del model, optimizer
    gc.collect()
    assert [item() for item in gone] == [None, None]


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("line_search_fn", [None, "strong_wolfe"])
@pytest.mark.parametrize("bad", [0, 2])
def test_lbfgs_gives_up_a_bad_step(level: str, line_search_fn: str | None, bad: int) -> None:
    model = Mlp()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn=line_search_fn)
    amp.initialize(
        model, optimizer, opt_level=level, half_dtype=torch.bfloat16, loss_scale=8.0, verbosity=0
    )
    before = [item.detach().clone() for item in amp.master_params(optimizer)]
    evaluations = iter(range(100))

    def closure() -> Tensor:
        optimizer.zero_grad()
        is_bad = next(evaluations) == bad
        backward(model, optimizer, factor=torch.inf if is_bad else 1.0)
        return F.mse_loss(model(make_batches(9)[0][0]).float(), make_batches(9)[0][1]).detach()

    optimizer.step(closure)
    after = list(amp.master_params(optimizer))
    assert all(item.isfinite().all() for item in after)
    if bad == 0 or line_search_fn is None:
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    optimizer.step(closure)
    assert not all(
        torch.equal(old, new) for old, new in zip(before, amp.master_params(optimizer), strict=True)
    )
    assert all(item.isfinite().all() for item in amp.master_params(optimizer))


@pytest.mark.parametrize("level", LEVELS)
def test_a_long_run_of_overflows_warns_once_and_names_the_parameter(level: str) -> None:
    model, optimizer = start(level)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(60):
            backward(model, optimizer, factor=torch.nan)
            optimizer.step()
            optimizer.zero_grad()
    [warning] = caught
    assert warning.category is amp.LossScaleCollapseWarning
    assert "'first.weight'" in str(warning.message)


@pytest.mark.parametrize("level", LEVELS)
def test_a_floor_above_the_usual_start(level: str) -> None:
    start(level, min_loss_scale=2.0**20)
    assert _amp_state.loss_scalers[0].loss_scale() == 2.0**20


def test_o1_takes_the_dtype_that_models_have_anyway() -> None:
    model, _ = start("O1", cast_model_type=torch.float32)
    assert model.first.weight.dtype == torch.float32
    assert _amp_state.opt_properties.cast_model_type is None


def test_o0_takes_half_inputs() -> None:
    model, _ = start("O0")
    inputs = make_batches(1)[0][0]
    assert model(inputs.half()).dtype == torch.float32


@pytest.fixture
def _in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on an accelerator that is still at work: what is not ready must not be waited for.
    monkeypatch.setattr(HostFlag, "is_ready", lambda self: False)


@pytest.mark.usefixtures("_in_flight")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("options", "num_reads"), [({"fused": True}, 0), ({}, 1)])
def test_a_clean_step_waits_only_where_python_decides(
    level: str, options: dict[str, Any], num_reads: int
) -> None:
    """Without ``fused=True`` an optimizer cannot skip by itself: Python has to know, and waits."""

    def make(parameters: Any, lr: float) -> Optimizer:
        return AdamW(parameters, lr=lr, **options)

    model, optimizer = start(level, make)
    plain = make(Mlp().parameters(), lr=0.1)
    for parameter in plain.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        with HostReads() as of_torch:
            plain.step()
        with HostReads() as ours:
            backward(model, optimizer)
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        # A fused step on masters asks nobody.
        assert ours.number == (0 if level == "O2" else of_torch.number + num_reads)

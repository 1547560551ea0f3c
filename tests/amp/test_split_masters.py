"""Masters in two halves: the same training to the last bit, in two bytes less per parameter."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
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
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from lightning_mp import amp
from lightning_mp.amp.closure_step import ClosureStep
from lightning_mp.amp.full_precision import full_precision
from lightning_mp.amp.gradient_clip import ClipRule
from lightning_mp.amp.opt_levels import resolve_opt_level
from lightning_mp.optim import FusedAdamW, FusedSGD

OPTIMIZERS: list[Any] = [
    partial(AdamW, lr=0.01),
    partial(Adam, lr=0.01, weight_decay=0.1),
    partial(SGD, lr=0.05, momentum=0.9),
    partial(FusedAdamW, lr=0.01),
    partial(FusedSGD, lr=0.05),
    # Those that are not fused get whole masters for their step.
    partial(torch.optim.RMSprop, lr=0.001),
    partial(AdamW, lr=0.01, amsgrad=True),
    partial(AdamW, lr=0.01, fused=True, amsgrad=True),
]
WAYS: list[dict[str, Any]] = [
    {},
    {"is_looked": True},
    {"clip": ClipRule(max_norm=0.3)},
    {"clip": ClipRule(clip_value=0.02), "is_looked": True},
    {"accumulate": 3},
    {"fused": False},
]


def step_both(
    make_optimizer: Any,
    *,
    clip: ClipRule | None = None,
    is_looked: bool = False,
    accumulate: int = 1,
    fused: bool = True,
    model_class: Any = Mlp,
    num_inputs: int = 13,
) -> None:
    """Step with whole and with split masters from the same point and compare, again and again.

    Each step begins anew from the whole masters: half weights are rounded differently where a
    master is exactly between two of them, so two trainings may part there.
    """
    sides = []
    for masters in (True, "split"):
        model = model_class()
        engine, optimizer = start(model, make_optimizer, fused=fused, master_weights=masters)
        sides.append((engine, model, optimizer))
    (whole_engine, whole, whole_optimizer), (_, split, split_optimizer) = sides
    for index, batch in enumerate(make_batches(6, num_inputs)):
        if index % accumulate == 0:
            split.load_state_dict(copy.deepcopy(whole.state_dict()))
            split_optimizer.load_state_dict(copy.deepcopy(whole_optimizer.state_dict()))
            whole_optimizer.zero_grad()
        backward(whole_engine, whole, batch)
        if (index + 1) % accumulate:
            continue
        for item, twin in zip(whole.parameters(), split.parameters(), strict=True):
            twin.grad = None if item.grad is None else item.grad.clone()
        results = []
        for engine, model, optimizer in sides:
            rule = None if clip is None else partial(engine.step_of(optimizer).clip, clip)
            engine.step(optimizer, rule, is_looked=is_looked)
            results.append(snapshot(engine, model, optimizer))
        halves = {name for name in results[0] if name.endswith(".half")}
        for result in results:
            for name in halves:
                del result[name]
        assert_same(*results)


def start_split(make_optimizer: Any = OPTIMIZERS[0], seed: int = 1) -> Any:
    model = Mlp(seed=seed)
    engine, optimizer = start(model, make_optimizer, master_weights="split")
    return model, engine, optimizer


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_steps_are_the_same_to_the_last_bit(make_optimizer: Any, way: Any) -> None:
    step_both(make_optimizer, **way)


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS[:2])
def test_so_they_are_in_other_layouts(make_optimizer: Any, way: Any) -> None:
    step_both(make_optimizer, model_class=ConvNet, num_inputs=75, **way)


def test_a_closure_is_stepped_on_whole_masters() -> None:
    results = []
    for masters in (True, "split"):
        model = Mlp()
        make_optimizer = partial(torch.optim.LBFGS, lr=0.1, max_iter=3)
        engine, optimizer = start(model, make_optimizer, master_weights=masters)

        def closure(engine: Any = engine, model: Any = model, optimizer: Any = optimizer) -> float:
            optimizer.zero_grad()
            model.num_calls = 0
            return backward(engine, model, make_batches(1)[0])

        step = ClosureStep(engine.step_of(optimizer), engine.masters)
        step.run(closure, lambda: None)
        results.append([engine.masters.value_of(item) for item in model.parameters()])
    assert all(map(torch.equal, *results))


def num_resident_bytes(engine: Any, model: nn.Module, optimizer: Any) -> int:
    tensors = list(model.parameters())
    tensors += [item.grad for item in model.parameters()]
    tensors += [engine.masters.of(item) for item in model.parameters()]
    tensors += list(getattr(engine.masters, "_remainders", {}).values())
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if value.numel() > 1]
    storages = {item.untyped_storage().data_ptr(): item.untyped_storage() for item in tensors}
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("masters", "expected"), [(True, 16.0), ("split", 14.0)])
@pytest.mark.parametrize("clip", [False, True])
def test_resident_bytes_per_parameter(masters: Any, expected: float, clip: bool) -> None:
    model = nn.Linear(1003, 103)
    engine, optimizer = start(model, AdamW, master_weights=masters)
    step = engine.step_of(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 1003, dtype=torch.bfloat16)).float().square().mean()
        engine.scale_loss(loss).backward()
        rule = partial(step.clip, ClipRule(max_norm=1.0)) if clip else None
        engine.step(optimizer, rule, is_looked=False)
    assert step.path == "fast"
    num_parameters = sum(item.numel() for item in model.parameters())
    found = num_resident_bytes(engine, model, optimizer) / num_parameters
    assert found == pytest.approx(expected, rel=0.001)


def test_state_dicts_hold_the_whole_values() -> None:
    model, engine, optimizer = start_split()
    original = {name: value.clone() for name, value in Mlp().state_dict().items()}
    assert_same(model.state_dict(), original)
    train(engine, model, optimizer, make_batches(4))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert all(item.dtype == torch.float32 for item in saved[0].values())
    plain = Mlp(seed=2)
    plain.load_state_dict(saved[0])
    assert_same(plain.state_dict(), saved[0])
    other, other_engine, other_optimizer = start_split(seed=3)
    train(other_engine, other, other_optimizer, make_batches(1))
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    assert_same(other.state_dict(), saved[0])
    for entry in other_optimizer.state_dict()["state"].values():
        assert all(value.dtype == torch.float32 for value in entry.values())
    other.num_calls = model.num_calls
    rest = make_batches(8)[4:]
    losses = [
        train(*item, rest)
        for item in ((engine, model, optimizer), (other_engine, other, other_optimizer))
    ]
    assert losses[0] == losses[1]
    assert_same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize(("first", "second"), [("split", True), (True, "split")])
def test_state_dicts_go_from_one_form_to_the_other(first: Any, second: Any) -> None:
    results = []
    for forms in ((first, second), (first, first)):
        model = Mlp()
        engine, optimizer = start(model, AdamW, master_weights=forms[0])
        train(engine, model, optimizer, make_batches(4))
        other = Mlp(seed=2)
        other_engine, other_optimizer = start(other, AdamW, master_weights=forms[1])
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        set_gradients(other, 0.25)
        other_engine.step(other_optimizer)
        results.append(other.state_dict())
    assert_same(*results)


def test_every_value_survives_a_load() -> None:
    model = nn.Linear(256, 257)
    engine = make_engine(master_weights="split")
    engine.convert(model)
    bits = torch.arange(256 * 257, dtype=torch.int32).view(257, 256)
    # All lower halves, ties among them, under ordinary and extreme upper ones.
    for upper in (0x0000, 0x0080, 0x3F80, 0x3F81, -0x4080, 0x7F7E, 0x7F00):
        value = (bits % 65536 | upper << 16).view(torch.float32)
        model.load_state_dict({"weight": value, "bias": torch.zeros(257)})
        found = model.state_dict()["weight"]
        assert torch.equal(found.view(torch.int32), value.view(torch.int32))
    engine.restore()
    assert torch.equal(model.weight.view(torch.int32), value.view(torch.int32))


def test_a_nan_is_the_canonical_one() -> None:
    model = nn.Linear(3, 1, bias=False)
    engine = make_engine(master_weights="split")
    engine.convert(model)
    # Payloads that would carry into the exponent or the sign.
    bits = torch.tensor([[0x7FFFFFFF, -1, 0x7F800001]], dtype=torch.int32)
    model.load_state_dict({"weight": bits.view(torch.float32)})
    found = model.state_dict()["weight"].view(torch.int32)
    assert found.tolist() == [[0x7FC00000] * 3]
    assert model.weight.isnan().all()


def test_what_others_write_counts_wholly_after_adopt() -> None:
    model, engine, optimizer = start_split()
    train(engine, model, optimizer, make_batches(2))
    weight = model.first.weight
    untouched = engine.masters.value_of(model.last.weight).clone()
    before = engine.masters.value_of(weight)
    assert not torch.equal(before, before.bfloat16().float())
    weight.data.fill_(0.75)
    loose = engine.masters.value_of(weight)
    assert not torch.equal(loose, torch.full_like(loose, 0.75))
    assert (loose - 0.75).abs().max() <= 0.75 * 2.0**-8
    engine.masters.adopt_all([weight])
    assert torch.equal(engine.masters.value_of(weight), torch.full_like(loose, 0.75))
    assert torch.equal(engine.masters.value_of(model.last.weight), untouched)


def test_masters_read_nan_where_they_have_no_value() -> None:
    model, engine, optimizer = start_split()
    master = engine.masters.of(model.first.weight)
    assert master.shape == model.first.weight.shape
    assert master.dtype == torch.float32
    assert master.isnan().all()
    expected = engine.masters.value_of(model.first.weight)
    with engine.step_of(optimizer).swap.masters_in():
        assert optimizer.param_groups[0]["params"][0] is master
        assert torch.equal(master, expected)
        with engine.masters.opened(model.parameters()):
            pass
        assert torch.equal(master, expected)
    assert master.isnan().all()
    assert torch.equal(engine.masters.value_of(model.first.weight), expected)


def test_a_hook_sees_values_and_its_writes_to_half_weights_count() -> None:
    results = []
    for masters in (True, "split"):
        model = Mlp()
        engine, optimizer = start(model, partial(SGD, lr=0.1), master_weights=masters)
        set_gradients(model)

        def hook(model: Any = model, optimizer: Any = optimizer) -> None:
            group = optimizer.param_groups[0]["params"]
            assert not any(item.isnan().any() for item in group)
            model.first.weight.data[2, 3] = 0.25

        engine.step(optimizer, hook)
        results.append(snapshot(engine, model, optimizer))
    assert_same(*results)


def test_an_exception_leaves_masters_closed() -> None:
    model, engine, optimizer = start_split(partial(torch.optim.RMSprop, lr=0.1))
    before = snapshot(engine, model, optimizer)
    set_gradients(model)

    def hook() -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        engine.step(optimizer, hook)
    assert engine.masters.of(model.first.weight).isnan().all()
    assert_same(snapshot(engine, model, optimizer), before)


def test_an_overflow_changes_nothing() -> None:
    for make_optimizer in OPTIMIZERS:
        model, engine, optimizer = start_split(make_optimizer)
        train(engine, model, optimizer, make_batches(2))
        before = snapshot(engine, model, optimizer)
        set_gradients(model, math.inf)
        engine.step(optimizer)
        assert_same(snapshot(engine, model, optimizer), before)


def test_full_precision_reads_and_writes_whole_values() -> None:
    model, engine, _ = start_split()
    with full_precision(engine.masters):
        assert torch.equal(model.first.weight, Mlp().first.weight)
        nn.init.constant_(model.first.weight, 0.1)
    assert model.first.weight.dtype == torch.bfloat16
    value = engine.masters.value_of(model.first.weight)
    assert torch.equal(value, torch.full_like(value, 0.1))


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
@pytest.mark.parametrize("with_closure", [False, True])
def test_amp_initialize_steps_the_same(make_optimizer: Any, with_closure: bool) -> None:
    results = []
    for masters in (True, "split"):
        model: Any = Mlp()
        optimizer: Any = make_optimizer(model.parameters())
        model, optimizer = amp.initialize(
            model,
            optimizer,
            opt_level="O2",
            half_dtype=torch.bfloat16,
            master_weights=masters,
            verbosity=0,
        )
        for inputs, targets in make_batches(1):
            optimizer.zero_grad()

            def closure(
                model: Any = model, x: Tensor = inputs, y: Tensor = targets, step: Any = optimizer
            ) -> Tensor:
                loss = F.mse_loss(model(x), y)
                with amp.scale_loss(loss, step) as scaled_loss:
                    scaled_loss.backward()
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), 0.3)
                optimizer.step()
        results.append(copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"])))
    assert_same(results[0][0], results[1][0])
    for index, entry in results[0][1].items():
        assert_same(entry, results[1][1][index])


def test_amp_adopts_what_others_write() -> None:
    model: Any = nn.Linear(13, 7)
    model, _ = amp.initialize(
        model,
        SGD(model.parameters(), lr=0.1),
        opt_level="O2",
        half_dtype=torch.bfloat16,
        master_weights="split",
        verbosity=0,
    )
    model.weight.data.fill_(0.75)
    assert not torch.equal(model.state_dict()["weight"], torch.full((7, 13), 0.75))
    amp.adopt(model.parameters())
    assert torch.equal(model.state_dict()["weight"], torch.full((7, 13), 0.75))


@pytest.mark.parametrize(
    ("level", "half", "found"),
    [
        ("O2", torch.float16, "float16"),
        ("O3", torch.float16, "float16"),
        ("O0", torch.bfloat16, "float32"),
    ],
)
def test_other_dtypes_are_refused(level: str, half: torch.dtype, found: str) -> None:
    message = f"master_weights = 'split' where the model is cast to {found}; it is allowed where"
    with pytest.raises(ValueError, match=message):
        resolve_opt_level(level, half_dtype=half, master_weights="split")


def test_o1_has_no_masters_to_split() -> None:
    with pytest.raises(ValueError, match="master_weights = 'split' at O1; only None"):
        resolve_opt_level("O1", master_weights="split")


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="master_weights = 'halved'; allowed are True, False"):
        resolve_opt_level("O2", half_dtype=torch.bfloat16, master_weights="halved")

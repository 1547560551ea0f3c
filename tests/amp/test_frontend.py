"""The Apex API trains as a plain FP32 loop does, in every call form, and says what it refuses."""

import copy
import re
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from support.engine import HALF, Mlp, make_batches
from support.tolerances import HALF_STEP, HALF_TRAINING, SAME_MATHS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from lightning_mp import amp
from lightning_mp.amp._amp_state import _amp_state

LEVELS = ["O0", "O1", "O2", "O3"]
INF_STEP = 2


def make_optimizers(model: Mlp, number: int = 1, lr: float = 0.05) -> list[Optimizer]:
    parts: list[Iterable[Tensor]] = [model.parameters()]
    if number == 2:
        parts = [
            [*model.first.parameters(), *model.norm.parameters()],
            [*model.rare.parameters(), *model.last.parameters()],
        ]
    return [SGD(part, lr=lr, momentum=0.9) for part in parts]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[1])


def train_fp32(accumulate: int, clip: float | None, number: int, has_inf: bool) -> list[Tensor]:
    model = Mlp()
    optimizers = make_optimizers(model, number)
    for index, batch in enumerate(make_batches(24)):
        (loss_of(model, batch) / accumulate).backward()
        if (index + 1) % accumulate:
            continue
        if not has_inf or index // accumulate != INF_STEP:
            for optimizer in optimizers:
                if clip is not None:
                    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
                optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return [item.detach() for item in model.parameters()]


def train_amp(
    model: Mlp, optimizers: list[Optimizer], accumulate: int, clip: float | None, has_inf: bool
) -> None:
    for index, batch in enumerate(make_batches(24)):
        loss = loss_of(model, batch) / accumulate
        if has_inf and index == INF_STEP * accumulate:
            loss = loss * torch.inf
        with amp.scale_loss(loss, optimizers) as scaled_loss:
            scaled_loss.backward()
        if (index + 1) % accumulate:
            continue
        for optimizer in optimizers:
            if clip is not None:
                nn.utils.clip_grad_norm_(amp.master_params(optimizer), clip)
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


@pytest.mark.parametrize("has_inf", [False, True])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("level", LEVELS)
def test_training_equals_fp32(
    level: str, half: str, accumulate: int, clip: float | None, number: int, has_inf: bool
) -> None:
    model = Mlp()
    model, optimizers = amp.initialize(
        model,
        make_optimizers(model, number),
        opt_level=level,
        half_dtype=HALF[half],
        loss_scale="dynamic",
        verbosity=0,
    )
    train_amp(model, optimizers, accumulate, clip, has_inf)
    expected = train_fp32(accumulate, clip, number, has_inf)
    for found, wanted in zip(model.state_dict().values(), expected, strict=True):
        torch.testing.assert_close(found, wanted, **HALF_TRAINING)
        if level == "O0":
            torch.testing.assert_close(found, wanted, **SAME_MATHS)
    moved = [(a - b).abs().max() for a, b in zip(expected, Mlp().parameters(), strict=True)]
    assert max(moved) > 0.05
    assert _amp_state.loss_scalers[0].loss_scale() == (2.0**15 if has_inf else 2.0**16)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("enabled", [True, False])
def test_return_shapes(level: str, enabled: bool) -> None:
    def start(models: Any, optimizers: Any = None) -> Any:
        return amp.initialize(models, optimizers, enabled, level, verbosity=0)

    model, others = Mlp(), [Mlp(), Mlp()]
    optimizer, both = make_optimizers(model)[0], [make_optimizers(item)[0] for item in others]
    assert start(model) is model
    found = start(Mlp(), None)
    assert isinstance(found, Mlp)
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    assert start(model, optimizer) == (model, optimizer)
    assert start(others, both) == (others, both)
    alone = [Mlp()]
    assert start(alone) is alone
    third = Mlp()
    [only], pair = start([third], tuple(make_optimizers(third, 2)))
    assert only is third
    assert len(pair) == 2
    fourth = Mlp()
    assert isinstance(start(fourth, make_optimizers(fourth))[1], list)
    fifth = Mlp()
    assert start(fifth, []) == (fifth, [])


def test_disabled_does_nothing() -> None:
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, enabled=False)
    loss = loss_of(model, make_batches(1)[0])
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
        scaled_loss.backward()
    optimizer.step()
    assert not torch.equal(model.first.weight, Mlp().first.weight)
    assert model.first.weight.dtype == torch.float32
    assert amp.state_dict() == {}
    assert _amp_state.loss_scalers == []
    properties = _amp_state.opt_properties
    assert (properties.enabled, properties.patch_torch_functions) == (False, False)
    with amp.scale_loss(loss, "anything that legacy code wraps an optimizer in") as same:
        assert same is loss
    amp.load_state_dict({})
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_disabled_model_may_be_enabled_later() -> None:
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, enabled=False)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert model.first.weight.dtype == torch.float16


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", [list, tuple, iter])
def test_several_optimizers_in_any_form_accumulate(level: str, form: Any) -> None:
    model, plain = Mlp(), Mlp()
    optimizers = make_optimizers(model, 2)
    amp.initialize(model, optimizers, opt_level=level, verbosity=0)
    for batch in make_batches(2):
        with amp.scale_loss(loss_of(model, batch), form(optimizers)) as scaled_loss:
            scaled_loss.backward()
        loss_of(plain, batch).backward()
    gradients = [item.grad for opt in optimizers for item in amp.master_params(opt)]
    for found, item in zip(gradients, plain.parameters(), strict=True):
        assert found is not None
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, item.grad, **HALF_STEP)


@pytest.mark.parametrize("level", LEVELS)
def test_an_overflow_in_one_loss_concerns_only_its_scaler_and_optimizer(level: str) -> None:
    models = [Mlp(), Mlp(seed=2)]
    optimizers = [make_optimizers(item)[0] for item in models]
    amp.initialize(
        models, optimizers, opt_level=level, num_losses=2, loss_scale="dynamic", verbosity=0
    )
    before = copy.deepcopy([dict(item.state_dict()) for item in models])
    batch = make_batches(1)[0]
    for index, factor in enumerate((torch.inf, 1.0)):
        loss = loss_of(models[index], batch) * factor
        with amp.scale_loss(loss, optimizers[index], loss_id=index) as scaled_loss:
            scaled_loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    assert [item.loss_scale() for item in _amp_state.loss_scalers] == [2.0**15, 2.0**16]
    assert [item._unskipped for item in _amp_state.loss_scalers] == [0, 1]
    weights = [item.state_dict()["first.weight"] for item in models]
    is_moved = [not torch.equal(a, b["first.weight"]) for a, b in zip(weights, before, strict=True)]
    assert is_moved == [False, True]


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("level", LEVELS)
def test_delayed_unscaling_equals_one_big_batch(level: str, half: str) -> None:
    batches = make_batches(3)
    results = []
    for is_split in (True, False):
        model = Mlp()
        model.num_calls = 0
        optimizer = make_optimizers(model)[0]
        amp.initialize(
            model, optimizer, opt_level=level, half_dtype=HALF[half], loss_scale=1024.0, verbosity=0
        )
        if is_split:
            for index, batch in enumerate(batches):
                model.num_calls = 0
                with amp.scale_loss(
                    loss_of(model, batch) / 3, optimizer, delay_unscale=index < 2
                ) as scaled_loss:
                    scaled_loss.backward()
        else:
            big = tuple(torch.cat(part) for part in zip(*batches, strict=True))
            with amp.scale_loss(loss_of(model, big), optimizer) as scaled_loss:
                scaled_loss.backward()
        results.append([item.grad for item in amp.master_params(optimizer)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, **HALF_STEP)


def test_a_delayed_overflow_check_moves_the_scale_later() -> None:
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    batch = make_batches(1)[0]
    scaler = _amp_state.loss_scalers[0].scaler
    with amp.scale_loss(
        loss_of(model, batch) * torch.inf, optimizer, delay_overflow_check=True
    ) as scaled_loss:
        scaled_loss.backward()
    assert scaler.scale.item() == 2.0**16
    with amp.scale_loss(loss_of(model, batch), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert scaler.scale.item() == 2.0**15
    before = model.first.weight.clone()
    optimizer.step()
    assert torch.equal(model.first.weight, before)


@pytest.mark.parametrize("level", LEVELS)
def test_master_params_are_fp32_and_in_order(level: str) -> None:
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    found = list(amp.master_params(optimizer))
    assert [item.shape for item in found] == [item.shape for item in model.parameters()]
    if level != "O3":
        assert {item.dtype for item in found} == {torch.float32}
        for item, wanted in zip(found, Mlp().parameters(), strict=True):
            assert torch.equal(item, wanted)


def test_state_in_the_format_of_apex() -> None:
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, opt_level="O2", num_losses=2, verbosity=0)
    for _ in range(3):
        with amp.scale_loss(loss_of(model, make_batches(1)[0]), optimizer, 1) as scaled_loss:
            scaled_loss.backward()
    state = amp.state_dict()
    assert state == {
        "loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0},
        "loss_scaler1": {"loss_scale": 65536.0, "unskipped": 3},
    }
    target = {"loss_scaler9": 3}
    assert amp.state_dict(target) is target
    assert set(target) == {"loss_scaler9", *state}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 512.0, "unskipped": 1999}, **{}})
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 512.0, "unskipped": 1999}
    with amp.scale_loss(loss_of(model, make_batches(1)[0]), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 1024.0, "unskipped": 0}


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_checkpoint_of_apex_loads(level: str, tmp_path: Any) -> None:
    """Apex saved FP32 weights, the optimizer over its masters, and the scalers."""
    source = Mlp(seed=2)
    source_optimizer = make_optimizers(source)[0]
    loss_of(source, make_batches(1)[0]).backward()
    source_optimizer.step()
    torch.save(
        {
            "model": source.state_dict(),
            "optimizer": source_optimizer.state_dict(),
            "amp": {"loss_scaler0": {"loss_scale": 4096.0, "unskipped": 17}},
        },
        tmp_path / "apex.pt",
    )
    model = Mlp()
    optimizer = make_optimizers(model)[0]
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    checkpoint = torch.load(tmp_path / "apex.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(checkpoint["amp"])
    assert amp.state_dict() == checkpoint["amp"]
    for item, wanted in zip(amp.master_params(optimizer), source.parameters(), strict=True):
        assert torch.equal(item, wanted)
        momentum = optimizer.state[item]["momentum_buffer"]
        assert momentum.dtype == torch.float32
        assert torch.equal(momentum, source_optimizer.state[wanted]["momentum_buffer"])


def test_a_state_of_another_number_of_scalers(capsys: pytest.CaptureFixture[str]) -> None:
    amp.initialize(Mlp(), opt_level="O2", num_losses=2)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 2}})
    assert "1 loss scalers and amp.initialize made 2" in capsys.readouterr().out
    states = {f"loss_scaler{n}": {"loss_scale": 2.0**n, "unskipped": n} for n in range(3)}
    amp.load_state_dict(states)
    assert list(amp.state_dict().values()) == list(states.values())[:2]


@pytest.mark.parametrize(
    "state",
    [
        {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1}, "loss_scaler1": {"unskipped": 1}},
        {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 1}, "loss_scaler1": 3},
        {"loss_scaler0": {"loss_scale": 8.0, "unskipped": -1}},
        {"loss_scaler0": {"loss_scale": "much", "unskipped": 1}},
        {"loss_scaler0": {"loss_scale": 0.0, "unskipped": 1}},
    ],
)
def test_a_damaged_state_is_refused(state: Any) -> None:
    amp.initialize(Mlp(), opt_level="O2", num_losses=2, verbosity=0)
    before = amp.state_dict()
    with pytest.raises(ValueError, match=r"amp state = .*pass what amp\.state_dict\(\) returned"):
        amp.load_state_dict(state)
    assert amp.state_dict() == before


def test_a_foreign_state_is_refused() -> None:
    amp.initialize(Mlp(), opt_level="O2", verbosity=0)
    with pytest.raises(ValueError, match=r"the key 'scale'; allowed: 'loss_scaler0'"):
        amp.load_state_dict({"scale": {}})
    for state in (None, [1]):
        with pytest.raises(TypeError, match=rf"amp state = {type(state).__name__}; allowed: a map"):
            amp.load_state_dict(state)


@pytest.mark.parametrize(
    "call",
    [
        lambda: amp.scale_loss(torch.ones(()), []).__enter__(),
        amp.state_dict,
        lambda: amp.load_state_dict({}),
    ],
)
def test_calls_before_initialize_are_refused(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"call model, optimizer = amp\.initialize"):
        call()


@pytest.mark.parametrize("name", ["opt_properties", "loss_scalers"])
def test_what_is_not_there_before_initialize(name: str) -> None:
    assert not hasattr(_amp_state, name)
    with pytest.raises(AttributeError, match=rf"no {name} yet; call amp\.initialize"):
        getattr(_amp_state, name)


def test_half_dtype_of_later_calls() -> None:
    amp.set_half_dtype(torch.bfloat16)
    assert amp.initialize(Mlp(), opt_level="O2", verbosity=0).first.weight.dtype == torch.bfloat16
    assert _amp_state.opt_properties.loss_scale == 1.0
    model = amp.initialize(Mlp(), opt_level="O3", half_dtype=torch.float16, verbosity=0)
    assert model.first.weight.dtype == torch.float16
    amp.set_half_dtype("fp16")
    assert amp.initialize(Mlp(), opt_level="O2", verbosity=0).first.weight.dtype == torch.float16


@pytest.mark.parametrize(
    ("half_dtype", "expected"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), (torch.bfloat16, torch.bfloat16)],
)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_half_dtypes_and_their_names(level: str, half_dtype: Any, expected: torch.dtype) -> None:
    amp.initialize(Mlp(), opt_level=level, half_dtype=half_dtype, verbosity=0)
    session = _amp_state.session
    assert session is not None
    assert session.engine is not None
    properties = session.engine.properties
    assert (properties.function_dtype or properties.half_dtype) == expected


@pytest.mark.parametrize("half_dtype", [torch.float32, "bfloat16", "float16", "", 16, ["bf16"]])
def test_other_half_dtypes_are_refused(half_dtype: Any) -> None:
    model = Mlp()
    message = rf"half_dtype = {re.escape(repr(half_dtype))}; allowed are .*, or 'fp16' and 'bf16'; "
    with pytest.raises(ValueError, match=message):
        amp.initialize(model, opt_level="O2", half_dtype=half_dtype, verbosity=0)
    with pytest.raises(ValueError, match=message):
        amp.set_half_dtype(half_dtype)
    assert model.first.weight.dtype == torch.float32
    assert _amp_state.half_dtype == torch.float16

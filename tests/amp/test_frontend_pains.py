"""What hurt users of Apex does not hurt here."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.engine import Mlp, make_batches
from support.tolerances import HALF_INPUT, HALF_STEP, HALF_TRAINING
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from lightning_mp import amp
from lightning_mp.amp._amp_state import _amp_state

LEVELS = ["O0", "O1", "O2", "O3"]
BATCH = make_batches(1)[0]


def start(level: str, make: Any = SGD, seed: int = 1, **kwargs: Any) -> tuple[Mlp, Optimizer]:
    model = Mlp(seed=seed)
    optimizer = make(model.parameters(), lr=0.05)
    return amp.initialize(model, optimizer, opt_level=level, **{"verbosity": 0, **kwargs})


def backward(model: nn.Module, optimizer: Optimizer, factor: float = 1.0) -> Tensor:
    loss = F.mse_loss(model(BATCH[0]).float(), BATCH[1]) * factor
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    return loss.detach()


def weights_of(model: nn.Module) -> list[Tensor]:
    return [item.detach().float().clone() for item in model.state_dict().values()]


def assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_many_losses_that_are_nan(level: str) -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    before = weights_of(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3000):
            with amp.scale_loss(model.bias.sum() * torch.nan, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [item.category for item in caught] == [amp.LossScaleCollapseWarning]
    assert _amp_state.loss_scalers[0].loss_scale() == 2.0**-10
    assert_equal(weights_of(model), before)


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_keeps_earlier_gradients(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer)
    before = [item.grad.clone() for item in amp.master_params(optimizer)]

    def fail() -> None:
        with amp.scale_loss(model(BATCH[0]).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_equal([item.grad for item in amp.master_params(optimizer)], before)
    assert_equal([item.grad for item in model.parameters()], before)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_stepped", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_good_step_after_an_overflow(level: str, is_stepped: bool, set_to_none: bool) -> None:
    model, optimizer = start(level, loss_scale="dynamic")
    plain = Mlp()
    plain_optimizer = SGD(plain.parameters(), lr=0.05)
    before = weights_of(model)
    backward(model, optimizer, torch.inf)
    plain(BATCH[0])
    if is_stepped:
        optimizer.step()
    assert_equal(weights_of(model), before)
    optimizer.zero_grad(set_to_none=set_to_none)
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        plain_optimizer.zero_grad()
        F.mse_loss(plain(BATCH[0]), BATCH[1]).backward()
        plain_optimizer.step()
    for found, wanted in zip(weights_of(model), weights_of(plain), strict=True):
        torch.testing.assert_close(found, wanted, **HALF_STEP)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("make", [SGD, Adam])
def test_a_closure(level: str, make: Any) -> None:
    results = []
    for is_closure in (True, False):
        model, optimizer = start(level, make)
        for factor in (1.0, torch.inf, 1.0):

            def closure(factor: float = factor, model: Any = model, opt: Any = optimizer) -> Any:
                opt.zero_grad()
                return backward(model, opt, factor)

            if is_closure:
                assert optimizer.step(closure) is not None
            else:
                closure()
                optimizer.step()
        results.append(weights_of(model))
    assert_equal(*results)


def test_lbfgs_at_a_static_scale() -> None:
    model, optimizer = start("O2", LBFGS, loss_scale=1.0)

    def closure() -> Tensor:
        model.num_calls = 0
        optimizer.zero_grad()
        return backward(model, optimizer)

    first = closure().item()
    for _ in range(3):
        optimizer.step(closure)
    assert closure().item() < 0.5 * first


def test_lbfgs_at_a_dynamic_scale_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LBFGS evaluates its closure.*pass loss_scale=1\.0"):
        start("O2", LBFGS)


@pytest.mark.parametrize("level", LEVELS)
def test_a_group_added_later(level: str) -> None:
    model = Mlp()
    optimizer = SGD(model.first.parameters(), lr=0.05)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    optimizer.add_param_group({"params": list(model.last.parameters())})
    before = model.last.weight.detach().clone()
    backward(model, optimizer)
    if level == "O2":
        assert {item.dtype for item in amp.master_params(optimizer)} == {torch.float32}
    optimizer.step()
    assert not torch.equal(model.last.weight, before)


@pytest.mark.parametrize("level", LEVELS)
def test_loaded_weights_stay(level: str) -> None:
    model, optimizer = start(level)
    backward(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    model.load_state_dict(Mlp(seed=2).state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    backward(model, optimizer)
    optimizer.step()
    for found, wanted in zip(weights_of(model), weights_of(Mlp(seed=2)), strict=True):
        torch.testing.assert_close(found, wanted, **HALF_INPUT)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_optimizers_state_comes_back(level: str) -> None:
    model, optimizer = start(level, Adam)
    backward(model, optimizer)
    optimizer.step()
    twin, other = start(level, Adam)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for pair in ((model, optimizer), (twin, other)):
        pair[0].num_calls = 0
        pair[1].zero_grad()
        backward(*pair)
        pair[1].step()
    assert_equal(weights_of(model), weights_of(twin))


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_scheduler_and_a_skipped_first_step(level: str, is_before: bool) -> None:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1) if is_before else None
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    scheduler = scheduler or StepLR(optimizer, 1)
    for index in range(5):
        backward(model, optimizer, 1.0 if index else torch.inf)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert scheduler.last_epoch == 5


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_fused_optimizer_skips(level: str) -> None:
    def make(parameters: Any, lr: float) -> Optimizer:
        return AdamW(parameters, lr=lr, fused=True)

    model, optimizer = start(level, make)
    before = weights_of(model)
    backward(model, optimizer, torch.inf)
    optimizer.step()
    assert_equal(weights_of(model), before)
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert not torch.equal(weights_of(model)[0], before[0])
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_set_up_leaves_the_first_alone(level: str) -> None:
    def train(model: Mlp, optimizer: Optimizer) -> list[Tensor]:
        for _ in range(3):
            backward(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
        return weights_of(model)

    fresh = train(*start(level))
    first, second = start(level), start("O2", seed=2)
    stranger = Mlp(seed=3)
    assert stranger(BATCH[0]).dtype == stranger.first(BATCH[0]).dtype == torch.float32
    train(*second)
    assert_equal(train(*first), fresh)


def _saved(model: nn.Module) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", torch.float32), ("O1", torch.bfloat16), ("O2", torch.bfloat16)]
)
def test_a_second_set_up_of_a_model_replaces_its_casts(level: str, dtype: torch.dtype) -> None:
    model, _ = start("O1", half_dtype=torch.float16)
    found: list[torch.dtype] = []
    model.first.register_forward_hook(lambda module, args, output: found.append(output.dtype))
    optimizer = SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, half_dtype=torch.bfloat16, verbosity=0)
    before = weights_of(model)
    backward(model, optimizer)
    optimizer.step()
    assert found == [dtype]
    assert not torch.equal(weights_of(model)[0], before[0])


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": lambda model: torch.load(_saved(model), weights_only=False),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_is_usable_and_independent(level: str, how: str) -> None:
    model, _ = start(level)
    before = weights_of(model)
    twin = COPIES[how](model)
    found, wanted = twin(BATCH[0]), model(BATCH[0])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, **HALF_TRAINING)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(BATCH[0]).any()
    assert_equal(weights_of(model), before)


@pytest.mark.parametrize("verbosity", [0, 1])
def test_what_is_printed(verbosity: int, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = start("O2", verbosity=verbosity)
    banner = capsys.readouterr().out
    backward(model, optimizer, torch.inf)
    line = capsys.readouterr().out
    if verbosity == 0:
        assert banner == line == ""
        return
    assert "Selected optimization level O2" in banner
    assert "cast_model_type        : torch.float16\n" in banner
    assert "master_weights         : True" in banner
    assert line == (
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    )


def test_what_legacy_code_reads() -> None:
    start("O2")
    scaler = _amp_state.loss_scalers[0]
    assert scaler.loss_scale() == scaler._loss_scale == 2.0**16
    scaler._loss_scale = 256.0
    scaler._unskipped = 5
    assert (scaler.loss_scale(), scaler._unskipped, scaler.dynamic) == (256.0, 5, True)
    properties = _amp_state.opt_properties
    assert (properties.enabled, properties.loss_scale) == (True, "dynamic")
    assert properties.options["opt_level"] == "O2"
    with pytest.raises(AttributeError, match=r"has no 'none'; see opt_properties\.options"):
        _ = properties.none

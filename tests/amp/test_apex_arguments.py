from typing import Any

import pytest
import torch
from support.engine import Mlp
from torch import nn

from lightning_mp import amp
from lightning_mp.amp._amp_state import _amp_state


def make_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def snapshot(model):
    return {name: item.clone() for name, item in model.state_dict().items()}


def is_unchanged(model, before):
    after = model.state_dict()
    return all(torch.equal(after[name], before[name]) for name in before) and all(
        parameter.dtype == torch.float32 for parameter in model.parameters()
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"models": "a model"}, TypeError, r"models = str; allowed: a torch\.nn\.Module"),
        ({"models": []}, TypeError, "models is empty"),
        ({"optimizers": "an optimizer"}, TypeError, r"optimizers = str; allowed: a torch\.optim"),
        ({"optimizers": {}}, TypeError, "optimizers = dict"),
        ({"num_losses": 0}, ValueError, "num_losses = 0; allowed: a whole number above 0"),
        ({"num_losses": True}, ValueError, "num_losses = True"),
        ({"opt_level": "02"}, ValueError, "letter O"),
        ({"loss_scale": "abc"}, ValueError, "loss_scale = 'abc'"),
        ({"keep_batchnorm_fp32": "yes"}, ValueError, "keep_batchnorm_fp32 = 'yes'"),
        ({"max_loss_scale": -1.0}, ValueError, r"max_loss_scale = -1\.0"),
        ({"max_loss_scale": None}, ValueError, "max_loss_scale = None; allowed: a positive number"),
        ({"min_loss_scale": "1"}, ValueError, "min_loss_scale = '1'; allowed: a positive number"),
        ({"min_loss_scale": 2.0**25}, ValueError, "min_loss_scale = .* to max_loss_scale"),
        ({"cast_model_outputs": "half"}, ValueError, "cast_model_outputs = 'half'; allowed: a flo"),
        ({"cast_model_outputs": torch.int8}, ValueError, r"cast_model_outputs = torch\.int8"),
        ({"opt_level": "O1", "master_weights": True}, ValueError, "master_weights = True at O1"),
    ],
)
def test_a_refused_call_changes_nothing(change, error, message):
    model = Mlp()
    before = snapshot(model)
    arguments = {"models": model, "optimizers": make_sgd(model), "opt_level": "O2", **change}
    with pytest.raises(error, match=message):
        amp.initialize(**arguments)
    assert is_unchanged(model, before)
    assert _amp_state.session is None


def test_an_optimizer_is_given_once():
    model = Mlp()
    optimizer = make_sgd(model)
    with pytest.raises(ValueError, match="an optimizer is there twice"):
        amp.initialize(model, [optimizer, optimizer], opt_level="O2")


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(ValueError, match="SGD holds no parameter of the models"):
        amp.initialize(Mlp(), make_sgd(Mlp()), opt_level="O2")


def test_an_optimizer_is_initialised_once():
    model = Mlp()
    optimizer = make_sgd(model)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(ValueError, match="SGD was initialised before"):
        amp.initialize(Mlp(), optimizer, opt_level="O2", verbosity=0)


def test_a_wrapped_model_is_refused():
    model = nn.DataParallel(Mlp())
    with pytest.raises(ValueError, match="the model is wrapped in DataParallel"):
        amp.initialize(model, make_sgd(model), opt_level="O2")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_half_models_are_refused_unless_allowed(level, monkeypatch):
    model = Mlp().half()
    with pytest.raises(ValueError, match="allow_incoming_model_not_fp32"):
        amp.initialize(model, make_sgd(model), opt_level=level)
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    optimizer = make_sgd(model)
    amp.initialize(model, optimizer, opt_level=level, half_dtype=torch.bfloat16, verbosity=0)
    before = model.last.weight.detach().clone()
    with amp.scale_loss(model(torch.ones(5, 13)).square().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    assert not torch.equal(before, model.last.weight)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_half_buffers_are_refused_unless_allowed(level, monkeypatch):
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5))
    model[1].running_mean = torch.full((5,), 0.5, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"buffer '1\.running_mean' has dtype torch\.float16"):
        amp.initialize(model, opt_level=level)
    monkeypatch.setattr(_amp_state, "allow_incoming_model_not_fp32", True)
    amp.initialize(model, opt_level=level, verbosity=0)
    assert model(torch.ones(3, 7)).isfinite().all()
    assert model.state_dict()["1.running_mean"].dtype == torch.float32


def test_what_apex_answered_with_an_attribute_error():
    """A step before any backward, an optimizer made anew, casts that were never on, no amp."""
    model = Mlp()
    optimizer = make_sgd(model)
    with amp.disable_casts():
        assert model(torch.ones(5, 13)).dtype == torch.float32
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    before = snapshot(model)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())
    optimizer = make_sgd(model)
    loss = model(torch.ones(5, 13)).sum()
    with (
        pytest.raises(RuntimeError, match=r"SGD was not init.*pass it to amp\.initialize"),
        amp.scale_loss(loss, optimizer),
    ):
        pass
    with pytest.raises(ValueError, match=r"initialised before, or a copy of it, is half too"):
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(TypeError, match=r"Mlp; allowed: an optimizer; write amp\.master_params"):
        nn.utils.clip_grad_norm_(amp.master_params(model), 1.0)


def test_losses_and_optimizers_that_do_not_belong():
    model, other = Mlp(), Mlp(seed=2)
    first, second = make_sgd(model), make_sgd(other)
    amp.initialize(model, first, opt_level="O2", verbosity=0)
    loss = model(torch.ones(5, 13)).sum()
    with pytest.raises(RuntimeError, match="SGD was not initialised"), amp.scale_loss(loss, second):
        pass
    for loss_id in (1, -1):
        with (
            pytest.raises(IndexError, match=f"loss_id = {loss_id}; allowed: 0 to 0"),
            amp.scale_loss(loss, first, loss_id=loss_id),
        ):
            pass
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (1.0, first, TypeError, r"loss = float; allowed: a tensor.*before \.item\(\)"),
        (loss, model, TypeError, r"Mlp in place of an optimizer.*what amp\.initialize returned"),
        (first, loss, TypeError, "Tensor in place of an optimizer"),
        (loss, None, TypeError, "NoneType in place of an optimizer"),
        (loss, {"one": first}, TypeError, "str in place of an optimizer"),
        (loss, [], ValueError, r"no optimizer, .* write amp\.scale_loss\(loss, optimizer\)"),
    ]
    for given, optimizers, error, message in wrong:
        with pytest.raises(error, match=message), amp.scale_loss(given, optimizers):
            pass
    amp.initialize(other, second, opt_level="O2", verbosity=0)
    with (
        pytest.raises(ValueError, match=r"optimizers come from 2 calls of amp\.initialize"),
        amp.scale_loss(loss, [first, second]),
    ):
        pass


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_outputs_in_a_dtype_of_choice(level):
    model = Mlp()
    amp.initialize(
        model, opt_level=level, cast_model_outputs=torch.bfloat16, half_dtype=torch.bfloat16
    )
    assert model(torch.ones(5, 13)).dtype == torch.bfloat16


def test_floor_and_cap_of_the_scale():
    model = Mlp()
    optimizer = make_sgd(model)
    amp.initialize(
        model,
        optimizer,
        opt_level="O2",
        verbosity=0,
        min_loss_scale=256.0,
        max_loss_scale=1024.0,
    )
    assert _amp_state.loss_scalers[0].loss_scale() == 1024.0
    for _ in range(4):
        loss = model(torch.ones(5, 13)).sum() * float("inf")
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert _amp_state.loss_scalers[0].loss_scale() == 256.0

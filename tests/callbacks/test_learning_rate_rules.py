import pytest
import torch

from lightning_mp.callbacks.learning_rate_rules import (
    check_betas,
    learning_rate_factor,
    resolve_rule,
    scaled_step,
)
from lightning_mp.optim import FusedAdamW, FusedSGD


def make(optimizer_class, **options):
    return optimizer_class([torch.nn.Parameter(torch.ones(3))], lr=0.5, **options)


class MyAdam(torch.optim.AdamW):
    pass


class Unknown(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})


@pytest.mark.parametrize(
    ("optimizer_class", "rule"),
    [
        (torch.optim.SGD, "linear"),
        (FusedSGD, "linear"),
        (torch.optim.AdamW, "sqrt"),
        (FusedAdamW, "sqrt"),
        (torch.optim.NAdam, "sqrt"),
        (torch.optim.RMSprop, "sqrt"),
        (torch.optim.Adafactor, "sqrt"),
        (MyAdam, "sqrt"),
    ],
)
def test_auto_follows_the_optimizer(optimizer_class, rule):
    assert resolve_rule(make(optimizer_class), "auto") == rule
    assert resolve_rule(make(optimizer_class), "none") == "none"


def test_auto_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="rule = 'auto' with Unknown; it is known for SGD"):
        resolve_rule(make(Unknown), "auto")
    assert resolve_rule(make(Unknown), "sqrt") == "sqrt"


@pytest.mark.parametrize(
    ("ratio", "rule", "factor"),
    [(4, "linear", 4), (4, "sqrt", 2), (0.25, "sqrt", 0.5), (0.25, "linear", 0.25), (7, "none", 1)],
)
def test_factor(ratio, rule, factor):
    assert learning_rate_factor(ratio, rule) == factor


def test_step_is_that_of_the_scaled_optimizer():
    scaled = make(torch.optim.AdamW, betas=(0.9, 0.99), eps=1e-3)
    expected = torch.optim.AdamW(
        [torch.nn.Parameter(torch.ones(3))], lr=1.0, betas=(0.6, 0.96), eps=5e-4
    )
    for optimizer in (scaled, expected):
        optimizer.param_groups[0]["params"][0].grad = torch.tensor([1.0, -2.0, 0.001])
    with scaled_step(scaled, 2.0, beta_ratio=4.0):
        scaled.step()
    expected.step()
    pair = [item.param_groups[0]["params"][0] for item in (scaled, expected)]
    torch.testing.assert_close(*pair)
    group = scaled.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.9, 0.99), 1e-3)


def test_rate_is_given_back_after_an_exception_and_a_write_inside_stays():
    optimizer = make(torch.optim.SGD)
    with pytest.raises(KeyError), scaled_step(optimizer, 4.0):
        raise KeyError
    assert optimizer.param_groups[0]["lr"] == 0.5
    with scaled_step(optimizer, 4.0):
        optimizer.param_groups[0]["lr"] = 7.0
    assert optimizer.param_groups[0]["lr"] == 7.0


def test_rate_may_be_a_tensor():
    optimizer = make(torch.optim.SGD)
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    with scaled_step(optimizer, 4.0):
        assert optimizer.param_groups[0]["lr"] == 2.0
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.5


def test_betas_that_cannot_be_scaled_are_refused():
    check_betas(make(torch.optim.Adam, betas=(0.0, 0.999)), 900.0)
    with pytest.raises(ValueError, match=r"at 16 times the base batch size; beta = 0\.9 allows"):
        check_betas(make(torch.optim.Adam), 16.0)
    with pytest.raises(ValueError, match="scale_betas = True with SGD, which has no betas"):
        check_betas(make(torch.optim.SGD), 2.0)

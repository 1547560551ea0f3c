"""One curve that earns each verdict, and one like it that does not."""

import math
import random

import pytest

from lightning_mp.callbacks.loss_curve import ADVICE, judge_loss_curve


def curve(shape, noise, num_steps=200, seed=0):
    generator = random.Random(seed)
    return [
        shape(step / num_steps) * (1 + noise * generator.gauss(0, 1)) for step in range(num_steps)
    ]


def falling(position):
    return 2 * math.exp(-2 * position)


def flat(position):
    return 1.0


def slow(position):
    return 2 - 0.12 * position


def rising(position):
    return 1 + 3 * max(0, position - 0.4)


def dented(position):
    """Rises for a while, and recovers."""
    return falling(position) + (1.5 if 0.3 < position < 0.45 else 0)


CURVES = [
    (falling, 0.08, "healthy"),
    (falling, 0.5, "jagged"),
    (falling, 0.2, "healthy"),
    (slow, 0.002, "too_smooth"),
    (slow, 0.03, "healthy"),  # as slow, but with noise
    (falling, 0.002, "healthy"),  # as smooth, but fast
    (flat, 0.05, "plateau"),
    (lambda position: 1 + 0.1 * position, 0.05, "plateau"),  # no fall, and no rise to speak of
    (lambda position: 1.3 - 0.3 * position, 0.05, "healthy"),
    (rising, 0.15, "divergence"),
    (rising, 0.4, "divergence"),  # strong swings and a sustained rise
    (dented, 0.05, "healthy"),
]


@pytest.mark.parametrize(("shape", "noise", "verdict"), CURVES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_verdict(shape, noise, verdict, seed):
    found = judge_loss_curve(curve(shape, noise, seed=seed))
    assert found.verdict == verdict
    assert found.advice == ADVICE[verdict]


def test_each_verdict_has_a_curve_and_an_advice():
    assert {verdict for *_, verdict in CURVES} == set(ADVICE)


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_verdict_does_not_depend_on_the_unit(factor):
    for shape, noise, verdict in CURVES:
        losses = [factor * loss for loss in curve(shape, noise)]
        assert judge_loss_curve(losses).verdict == verdict


def test_numbers():
    found = judge_loss_curve(curve(flat, 0.05, num_steps=1000))
    assert found.jaggedness == pytest.approx(0.05, rel=0.1)
    assert found.trend == pytest.approx(0.0, abs=0.02)
    straight = judge_loss_curve([2 - step / 100 for step in range(101)])
    assert straight.trend == pytest.approx(-1 / 1.5)
    assert straight.jaggedness < 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_diverges(bad):
    assert judge_loss_curve([1.0] * 20 + [bad] + [1.0] * 20).verdict == "divergence"


def test_negative_and_zero_losses():
    assert judge_loss_curve([-loss for loss in curve(rising, 0.05)]).verdict == "healthy"
    assert judge_loss_curve([0.0] * 30).verdict == "plateau"


def test_too_few_losses_are_refused():
    with pytest.raises(ValueError, match="losses = 15 numbers; at least 16 are needed"):
        judge_loss_curve([1.0] * 15)

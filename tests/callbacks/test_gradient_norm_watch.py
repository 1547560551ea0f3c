import math

import pytest
import torch
from support.host_reads import HostReads

from lightning_mp.callbacks.gradient_norm_watch import GradientNormWatch


def observe(watch, norms):
    for norm in norms:
        watch.observe(torch.tensor(float(norm)))
    return [spike.step for spike in watch.take(wait=True)]


@pytest.mark.parametrize(
    ("norms", "steps"),
    [
        ([1.0] * 20, []),
        ([1.0, 1.0, 50.0], []),  # too short a history
        ([1.0, 1.2, 0.9, 50.0, 1.0, 1.1, 60.0], [3, 6]),
        ([1.0, 1.0, 1.0, 9.9], []),
        ([2.0**step for step in range(12)], [6, 7, 8, 9, 10, 11]),  # doubles at each step
        ([1.0, math.inf, 1.0, math.nan], [1, 3]),
        ([0.0, 0.0, 0.0, 0.0, 5.0], []),  # no norm above 0 to compare with
        ([1.0, 1.0, 1.0, 0.001, 0.001], []),  # a fall is no alarm
    ],
)
def test_alarms(norms, steps):
    assert observe(GradientNormWatch(spike_factor=10.0), norms) == steps


def test_a_lasting_change_becomes_normal():
    steps = observe(GradientNormWatch(average_steps=5), [1.0] * 10 + [100.0] * 30)
    assert steps[0] == 10
    assert steps[-1] < 20


def test_overflows_are_no_alarm_where_they_are_skipped():
    watch = GradientNormWatch(allows_overflow=True)
    assert observe(watch, [1.0, math.inf, math.nan, 1.0, 1.0, 70.0]) == [5]


def test_alarm_tells_norm_and_typical_norm():
    watch = GradientNormWatch()
    for norm in (2.0, 8.0, 4.0, 100.0):
        watch.observe(torch.tensor(norm))
    ((step, norm, typical),) = watch.take()
    assert (step, norm) == (3, 100.0)
    assert typical == pytest.approx(4.0)


def test_clean_steps_read_nothing_but_the_flag():
    watch = GradientNormWatch()
    with HostReads() as reads:
        observe(watch, [1.0] * 7)
    assert reads.number == 7


def test_state_goes_on():
    norms = [1.0, 2.0, 1.5, 0.7]
    whole, first, second = GradientNormWatch(), GradientNormWatch(), GradientNormWatch()
    assert observe(whole, [*norms, 30.0, 11.0]) == [4]
    observe(first, norms)
    second.load_state_dict(first.state_dict())
    assert observe(second, [30.0, 11.0]) == [4]
    assert second.state_dict() == pytest.approx(whole.state_dict())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"spike_factor": 1.0}, r"spike_factor = 1\.0; allowed is a number above 1"),
        ({"spike_factor": math.nan}, "spike_factor = nan"),
        ({"average_steps": 0}, "average_steps = 0; allowed is an int of at least 1"),
        ({"average_steps": 2.5}, r"average_steps = 2\.5"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GradientNormWatch(**kwargs)

"""The estimator against known values and against the covariance of single samples."""

import math

import pytest
import torch
from support.host_reads import HostReads
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from lightning_mp.callbacks.gradient_noise_scale import GradientNoiseScale, estimate_from_parts

DIMENSION, SPREAD = 103, 0.7


def run_known(sizes, weights=None, num_steps=300, scale=1.0, seed=0, dtype=torch.float32):
    """Steps at a gradient whose samples are normal around a known mean."""
    generator = torch.Generator().manual_seed(seed)
    mean = 0.1 * torch.randn(DIMENSION, generator=torch.Generator().manual_seed(7))
    weight = nn.Parameter(torch.zeros(DIMENSION, dtype=dtype))
    noise = GradientNoiseScale([weight], average_steps=10**6)
    weights = weights or [size / sum(sizes) for size in sizes]
    for _ in range(num_steps):
        weight.grad = None
        for size, share in zip(sizes, weights, strict=True):
            samples = mean + SPREAD * torch.randn(size, DIMENSION, generator=generator)
            ((samples.to(dtype) @ weight).mean() * share * scale).backward()
            noise.add_part(num_samples=size, weight=share, loss_scale=scale)
        noise.add_step(weight.grad.float().norm() / scale)
    noise.remove()
    true_trace, true_square = DIMENSION * SPREAD**2, float(mean.dot(mean))
    return noise.estimate(), true_trace / true_square, true_trace, true_square


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [
        ([8] * 4, None),
        ([32, 32], None),
        ([13] * 3 + [5], None),
        ([13] * 3 + [5], [0.25] * 4),  # as Lightning weighs a short last micro-batch
        ([7, 7], [0.25] * 2),  # a short last window: the weights do not sum to 1
        ([1] * 7, None),
    ],
)
def test_known_noise_scale_is_met_within_three_standard_errors(sizes, weights):
    found, scale, trace, square = run_known(sizes, weights)
    error = float(found.standard_error)
    assert 0 < error < 0.2 * scale
    assert abs(float(found.scale) - scale) < 3 * error
    assert float(found.trace) == pytest.approx(trace, rel=0.05)
    assert float(found.gradient_square) == pytest.approx(square, rel=0.3)


def test_standard_error_is_the_spread_of_repeated_runs():
    runs = [run_known([16] * 2, num_steps=60, seed=seed)[0] for seed in range(40)]
    scales = torch.stack([run.scale for run in runs])
    errors = torch.stack([run.standard_error for run in runs])
    assert float(errors.median()) == pytest.approx(float(scales.std()), rel=0.5)


def test_loss_scale_is_taken_off():
    plain, scaled = run_known([8] * 4)[0], run_known([8] * 4, scale=1024.0)[0]
    assert float(scaled.scale) == pytest.approx(float(plain.scale), rel=1e-5)


def test_half_gradients_are_summed_in_fp32():
    plain = run_known([8] * 4, num_steps=50)[0]
    half = run_known([8] * 4, num_steps=50, scale=2.0**14, dtype=torch.float16)[0]
    assert float(half.trace) == pytest.approx(float(plain.trace), rel=0.01)


def test_estimate_equals_the_covariance_of_single_samples():
    torch.manual_seed(0)
    inputs, targets = torch.randn(256, 13), torch.randn(256, 3)
    net = nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))
    parameters = {name: item.detach() for name, item in net.named_parameters()}

    def loss_of(parameters, sample, target):
        return F.mse_loss(functional_call(net, parameters, (sample[None],))[0], target)

    rows = vmap(grad(loss_of), (None, 0, 0))(parameters, inputs, targets)
    flat = torch.cat([row.flatten(1) for row in rows.values()], 1).double()
    trace = float((flat - flat.mean(0)).square().sum(1).mean())
    exact = trace / float(flat.mean(0).square().sum())
    noise = GradientNoiseScale(net.parameters(), average_steps=10**6)
    for _ in range(300):
        net.zero_grad()
        for _ in range(4):
            chosen = torch.randint(256, (16,))
            (F.mse_loss(net(inputs[chosen]), targets[chosen]) / 4).backward()
            noise.add_part(num_samples=16, weight=0.25)
        gradients = [item.grad.flatten() for item in net.parameters()]
        noise.add_step(torch.cat(gradients).norm())
    found = noise.estimate()
    assert abs(float(found.scale) - exact) < 3 * float(found.standard_error)
    assert float(found.standard_error) < 0.3 * exact


def test_gradients_that_come_at_once_have_their_own_bias_removed():
    # E small - E big is that of the sizes: 4 samples, two parts of 2 each.
    trace, square = estimate_from_parts(*map(torch.tensor, (1 + 6 / 2, 1 + 6 / 4, 1 / 2, 1 / 4)))
    assert (float(trace), float(square)) == pytest.approx((6.0, 1.0))


def test_what_tells_nothing_is_left_out():
    weight = nn.Parameter(torch.ones(3))
    noise = GradientNoiseScale([weight, nn.Parameter(torch.ones(2), requires_grad=False)])
    assert math.isnan(noise.estimate().scale)
    noise.add_step(torch.tensor(1.0))  # without a part
    weight.sum().backward()
    noise.add_part(num_samples=3, weight=1.0)
    noise.add_step(weight.grad.norm())  # one part only
    (weight.sum() * math.inf).backward()
    noise.add_part(num_samples=3, weight=0.5)
    weight.sum().backward()
    noise.add_part(num_samples=3, weight=0.5)
    noise.add_step(weight.grad.norm())  # an overflow
    assert math.isnan(noise.estimate().scale)
    assert noise.state_dict()["moments"] == [0.0] * 7
    noise.add_part(num_samples=3, weight=1.0)  # no backward
    assert math.isnan(noise.estimate().standard_error)


def test_a_true_gradient_of_zero_is_an_infinite_scale():
    weight = nn.Parameter(torch.ones(1))
    noise = GradientNoiseScale([weight])
    for _ in range(2):
        weight.grad = None
        for sign in (1.0, -1.0):
            (weight.sum() * sign / 2).backward()
            noise.add_part(num_samples=1, weight=0.5)
        noise.add_step(weight.grad.norm())
    assert float(noise.estimate().scale) == math.inf


def test_old_steps_are_forgotten():
    weight = nn.Parameter(torch.ones(1))
    noise = GradientNoiseScale([weight], average_steps=2)
    for spread in [3.0] * 20 + [0.5] * 20:
        weight.grad = None
        for sign in (1.0, -1.0):
            (weight.sum() * (1 + spread * sign) / 2).backward()
            noise.add_part(num_samples=1, weight=0.5)
        noise.add_step(weight.grad.norm())
    assert float(noise.estimate().trace) == pytest.approx(0.5, rel=1e-4)


def test_state_goes_on_and_hooks_go():
    weight = nn.Parameter(torch.ones(2))
    first = GradientNoiseScale([weight])
    for size in (1, 2):
        (weight.sum() * size).backward()
        first.add_part(num_samples=size, weight=0.5)
    first.add_step(weight.grad.norm())
    second = GradientNoiseScale([])
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    first.remove()
    weight.sum().backward()
    first.add_part(num_samples=1, weight=1.0)
    assert not first._norms
    assert weight._backward_hooks == {}


def test_sparse_gradients_count_once():
    table = nn.Embedding(7, 3, sparse=True)
    noise = GradientNoiseScale(table.parameters())
    for index in ([1, 1, 4], [2, 2, 2]):
        (table(torch.tensor(index)).sum() / 2).backward()
        noise.add_part(num_samples=3, weight=0.5)
    noise.add_step(table.weight.grad.coalesce().values().norm())
    # Squared norms of the parts' gradients: 3 * (4 + 1) and 3 * 9; of their mean: 3 * 14 / 4.
    expected = (0.5 * (15 + 27) - 10.5) / (1 / 3 - 1 / 6)
    assert float(noise.estimate().trace) == pytest.approx(expected, rel=1e-5)


def test_nothing_is_read_from_the_device():
    with HostReads() as reads:
        run_known([4] * 2, num_steps=3)
    # The known values are read once, for the test.
    assert reads.number <= 1


@pytest.mark.parametrize("value", [0, 1.5, True])
def test_bad_argument(value):
    with pytest.raises(ValueError, match=f"average_steps = {value!r}; allowed is an int of at"):
        GradientNoiseScale([], average_steps=value)

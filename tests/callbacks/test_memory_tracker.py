"""The tracker against counts by hand, against torch's own, and its predictions against runs."""

import gc

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from lightning_mp.callbacks.memory_report import (
    Maximum,
    MemoryReport,
    Peak,
    fit_memory_lines,
    format_report,
    predict_peak_bytes,
)
from lightning_mp.callbacks.memory_tracker import MemoryTracker


def transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 3), lambda size: torch.randn(size, 13, 48)


def convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 13, 3, padding=1),
        nn.BatchNorm2d(13),
        nn.ReLU(),
        nn.Conv2d(13, 17, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(17 * 81, 10),
    )
    return model, lambda size: torch.randn(size, 3, 17, 17)


def dense():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(103, 307), nn.Tanh(), nn.Linear(307, 7))
    return model, lambda size: torch.randn(size, 103)


MODELS = [transformer, convolutions, dense]


def train_step(model, optimizer, batch, tracker=None):
    loss = model(batch).square().mean()
    if tracker:
        tracker.begin_backward()
    loss.backward()
    if tracker:
        tracker.end_backward()
        tracker.begin_step()
    optimizer.step()
    optimizer.zero_grad()
    if tracker:
        tracker.end_step(dict(state) for state in optimizer.state.values())


def measure(make, size, num_steps=2):
    model, make_batch = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = make_batch(size)
    for _ in range(num_steps - 1):
        train_step(model, optimizer, batch)
    tracker = MemoryTracker(model, (dict(state) for state in optimizer.state.values()))
    tracker.add([batch], "activations")
    with tracker:
        train_step(model, optimizer, batch, tracker)
    report = tracker.report(batch_size=size)
    tracker.remove()
    return report


def measure_with_torch(make, size):
    model, make_batch = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = make_batch(size)
    train_step(model, optimizer, batch)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, batch)
    with tracker:
        train_step(model, optimizer, batch)
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(key, "value", key)): value for key, value in found.items()}


def num_bytes(tensors):
    return sum(item.numel() * item.element_size() for item in tensors)


def test_parts_are_those_counted_by_hand():
    model = nn.Sequential(nn.Linear(10, 100, bias=False), nn.Tanh(), nn.Linear(100, 10, bias=False))
    batch = torch.randn(64, 10)
    tracker = MemoryTracker(model)
    tracker.add([batch], "activations")
    with tracker:
        hidden = model[1](model[0](batch))
        output = model[2](hidden)
        loss = output.sum()
        del hidden, output
        tracker.begin_backward()
        loss.backward()
        tracker.end_backward()
    found = tracker.report(batch_size=64)
    weights = 2 * 4 * 10 * 100
    # The batch, the output of tanh and the loss; what Linear gives to tanh is not kept.
    activations = 64 * 10 * 4 + 64 * 100 * 4 + 4
    assert found.pass_peak.by_category["parameters"] == weights
    assert found.activation_bytes == {"1": 64 * 100 * 4, "": 64 * 10 * 4 + 4}
    assert sum(found.activation_bytes.values()) == activations
    assert sum(found.pass_peak.by_category.values()) == found.pass_peak.num_bytes
    assert found.step_peak == found.pass_peak
    assert {item.grad.untyped_storage().nbytes() for item in model.parameters()} == {4000}


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("size", [4, 32])
def test_peak_is_that_of_torchs_own_tracker(make, size):
    found, expected = measure(make, size), measure_with_torch(make, size)
    model, _ = make()
    assert found.step_peak.num_bytes == pytest.approx(expected["Total"], rel=0.02)
    buffers = num_bytes(model.buffers())
    weights = num_bytes(model.parameters())
    for peak in (found.pass_peak, found.optimizer_peak):
        assert sum(peak.by_category.values()) == peak.num_bytes
        assert peak.by_category["parameters"] == weights + buffers
        # Two moments and a counter of a float for each parameter.
        assert peak.by_category["optimizer"] == 2 * weights + 4 * len(list(model.parameters()))
    assert found.optimizer_peak.by_category["gradients"] == weights


@pytest.mark.parametrize("make", MODELS)
def test_line_through_small_sizes_predicts_larger_ones_within_two_per_cent(make):
    lines = fit_memory_lines([measure(make, size) for size in (8, 16)])
    for size in (32, 64, 103):
        measured = measure(make, size).step_peak.num_bytes
        assert predict_peak_bytes(lines, size) == pytest.approx(measured, rel=0.02), size


@pytest.mark.parametrize("make", MODELS)
def test_one_size_predicts_larger_ones_of_usual_models(make):
    lines = fit_memory_lines([measure(make, 16)])
    for size in (32, 64):
        measured = measure(make, size).step_peak.num_bytes
        assert predict_peak_bytes(lines, size) == pytest.approx(measured, rel=0.02), size


def test_small_batches_are_bound_by_the_optimizer():
    reports = [measure(dense, size) for size in (1, 2)]
    predicted = predict_peak_bytes(fit_memory_lines(reports), 1)
    assert predicted == reports[0].optimizer_peak.num_bytes > reports[0].pass_peak.num_bytes


def test_steps_that_differ_are_joined_by_their_peaks():
    def report(size, num_maxima):
        maxima = tuple(Maximum(100 + 20 * size, 100) for _ in range(num_maxima))
        return MemoryReport(size, Peak(100 + 20 * size, {}), Peak(0, {}), {}, maxima)

    assert predict_peak_bytes(fit_memory_lines([report(2, 3), report(4, 5)]), 10) == 300


def test_first_step_makes_the_state_of_the_optimizer():
    first, second = measure(dense, 8, num_steps=1), measure(dense, 8, num_steps=2)
    assert "optimizer" not in first.pass_peak.by_category
    state = second.optimizer_peak.by_category["optimizer"]
    assert first.optimizer_peak.by_category["optimizer"] == state


def test_freed_memory_is_not_counted_and_hooks_go():
    model = nn.Linear(7, 7)
    tracker = MemoryTracker(model)
    with tracker:
        for _ in range(50):
            model(torch.ones(5, 7)).sum()
        gc.collect()
    assert tracker.report(batch_size=5).step_peak.num_bytes < num_bytes(model.parameters()) + 3000
    tracker.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_modules_are_left_after_an_exception():
    class Fails(nn.Module):
        def forward(self, values):
            raise KeyError

    model = nn.Sequential(Fails())
    tracker = MemoryTracker(model)
    with tracker:
        with pytest.raises(KeyError):
            model(torch.ones(1))
        kept = torch.ones(103)
        tracker.begin_backward()
    assert tracker.report(batch_size=1).activation_bytes == {"": kept.numel() * 4}


def test_table():
    peak = Peak(3 * 2**20, {"parameters": 2**20, "activations": 2 * 2**20})
    activations = {"net.0": 2**20, "": 5, "net.1": 1}
    report = MemoryReport(4, peak, Peak(0, {}), activations, (Maximum(3 * 2**20, 2**20),))
    lines = format_report(report, fit_memory_lines([report]), [8], num_modules=2).splitlines()
    assert lines == [
        "Memory of a step",
        "  peak at batch size 4             3.00 MiB",
        "    parameters                     1.00 MiB",
        "    gradients                      0.00 MiB",
        "    optimizer                      0.00 MiB",
        "    activations                    2.00 MiB",
        "    temporary                      0.00 MiB",
        "  activations of net.0             1.00 MiB",
        "  activations of no module         0.00 MiB",
        "  predicted at batch size 8        5.00 MiB",
    ]

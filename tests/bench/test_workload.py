import pytest
import torch
from torch.nn import functional as F

from benchkit.workload import WORKLOADS, make_workload


@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_repeat_by_index_only(name):
    workload = make_workload(name, is_smoke=True)
    (inputs, targets), (other, _) = workload.make_batches(2)
    again, targets_again = workload.make_batch(0)
    assert torch.equal(inputs, again)
    assert torch.equal(targets, targets_again)
    assert not torch.equal(inputs, other)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_model_learns_from_fresh_batches(name):
    torch.manual_seed(0)
    workload = make_workload(name, is_smoke=True)
    model = workload.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for inputs, targets in workload.make_batches(120):
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) < 0.95 * sum(losses[:20])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("resnet18", 11.0e6, 11.4e6),
        ("transformer", 5.0e6, 5.6e6),
        ("mlp", 29.0e6, 30.0e6),
    ],
)
def test_full_models_have_their_size(name, low, high):
    with torch.device("meta"):
        model = make_workload(name).make_model()
    assert low < sum(parameter.numel() for parameter in model.parameters()) < high


def test_an_unknown_workload_is_refused():
    with pytest.raises(ValueError, match=r"workload = 'vgg'; allowed are resnet18"):
        make_workload("vgg")

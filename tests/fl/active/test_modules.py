"""Modules, optimizers, saving, and what else models do with a device."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(4 * 13 * 13, 10),
    )  # fmt: skip


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW single": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


@pytest.mark.parametrize("device", ["fl:0", "fl:3"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_gives_the_losses_of_the_cpu_bit_for_bit(name: str, device: str):
    losses = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        model, x, y = make_cnn(), torch.randn(8, 1, 28, 28), torch.randint(10, (8,))
        model, x, y = model.to(place), x.to(place), y.to(place)
        optimizer = OPTIMIZERS[name](model.parameters())
        torch.manual_seed(1)

        def closure(model=model, x=x, y=y, optimizer=optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(3)])
    assert losses[0] == losses[1]


def test_moving_a_module_keeps_parameters_ties_and_optimizers():
    model = nn.Module()
    model.first, model.second = nn.Linear(3, 3), nn.Linear(3, 3)
    model.second.weight = model.first.weight
    weight = model.first.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for device in ("fl:0", "cpu", "fl:1"):
        model.to(device)
        assert model.first.weight is model.second.weight is weight
        assert optimizer.param_groups[0]["params"][0] is weight
        assert weight.device == torch.device(device)
        model.first(torch.ones(1, 3, device=device)).sum().backward()
        assert weight.grad.device == weight.device
    before = weight.detach().clone()
    optimizer.step()
    assert not torch.equal(weight, before)


def test_lazy_and_meta_modules():
    assert nn.LazyLinear(4).to("fl:0")(torch.ones(2, 3, device="fl:0")).shape == (2, 4)
    assert nn.Linear(3, 3, device="meta").to_empty(device="fl:1").weight.device.index == 1


@pytest.mark.parametrize("is_training", [True, False])
def test_transformer_layer(is_training: bool):
    torch.manual_seed(0)
    expected = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    layer = copy.deepcopy(expected).to("fl:0").train(is_training)
    expected.train(is_training)
    x = torch.randn(2, 7, 32)
    with torch.set_grad_enabled(is_training):
        result, reference = layer(x.to("fl:0")), expected(x)
    assert torch.equal(result.cpu(), reference)
    if is_training:
        result.sum().backward()
        reference.sum().backward()
        for ours, theirs in zip(layer.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_uses_the_kernel_of_the_cpu(is_causal: bool):
    attention = nn.functional.scaled_dot_product_attention
    x = torch.randn(2, 4, 16, 8)
    ours, theirs = x.to("fl:0").requires_grad_(), x.clone().requires_grad_()
    result, reference = (attention(q, q, q, is_causal=is_causal) for q in (ours, theirs))
    assert torch.equal(result.cpu(), reference)
    assert "ScaledDotProductFlashAttentionForCpu" in type(result.grad_fn).__name__
    result.sum().backward()
    reference.sum().backward()
    assert torch.equal(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("device", ["fl:0", "fl:3"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks(kind: type[nn.Module], bias: bool, device: str):
    torch.manual_seed(0)
    expected = kind(5, 7, 2, batch_first=True, bidirectional=True, bias=bias)
    network = copy.deepcopy(expected).to(device)
    x = torch.randn(3, 13, 5)
    result, reference = network(x.to(device))[0], expected(x)[0]
    torch.testing.assert_close(result.cpu(), reference)
    result.pow(2).sum().backward()
    reference.pow(2).sum().backward()
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind: type[nn.Module]):
    torch.manual_seed(0)
    expected = kind(5, 7)
    cell = copy.deepcopy(expected).to("fl:0")
    x = torch.randn(3, 5)
    result, reference = cell(x.to("fl:0")), expected(x)
    torch.testing.assert_close(
        [t.cpu() for t in result] if isinstance(result, tuple) else result.cpu(),
        list(reference) if isinstance(reference, tuple) else reference,
    )


def test_a_packed_sequence():
    x = torch.randn(3, 5, 4, device="fl:0")
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 1]), batch_first=True)
    assert packed.data.device == torch.device("fl:0")
    assert packed.is_fl
    assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]
    back, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert torch.equal(back[1, :3], x[1, :3])


def test_save_and_load_keep_devices_and_sharing():
    x = torch.randn(3, 4, device="fl:1")
    file = io.BytesIO()
    torch.save({"x": x, "view": x[1:]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["x"].device == x.device
    assert torch.equal(loaded["x"], x)
    assert loaded["x"].untyped_storage().data_ptr() == loaded["view"].untyped_storage().data_ptr()
    for location, device in (("cpu", "cpu"), ({"fl:1": "fl:0"}, "fl:0"), ("fl:3", "fl:3")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["x"].device == torch.device(device)
        assert torch.equal(loaded["x"].cpu(), x.cpu())


def test_pickle_and_deepcopy():
    x = torch.randn(3, 4, device="fl:1")
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert other.device == x.device
        assert torch.equal(other, x)
        assert other.data_ptr() != x.data_ptr()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_data_loader_with_workers_and_pinned_memory():
    dataset = TensorDataset(torch.randn(32, 4), torch.arange(32))
    total = 0
    for x, y in DataLoader(dataset, 8, pin_memory=True, num_workers=2):
        assert x.is_pinned()
        total += y.to("fl:0", non_blocking=True).sum().item()
    assert total == sum(range(32))


def test_autograd_finds_writes_in_place():
    x = torch.randn(3, device="fl:0", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_on_gradients():
    parameter = nn.Parameter(torch.ones(3, device="fl:0"))
    parameter.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])
    (parameter * 3).sum().backward()
    assert parameter.grad.tolist() == [6, 6, 6]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_function_transforms():
    x = torch.randn(4, 3, device="fl:0")
    gradient = torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))
    assert torch.equal(gradient(x), 2 * x)
    assert torch.func.jacrev(torch.sin)(x[0]).shape == (3, 3)
    tangent = torch.func.jvp(lambda x: x * x, (x,), (x,))[1]
    assert torch.equal(tangent, 2 * x * x)


def test_default_device_and_profiler():
    torch.set_default_device("fl:1")
    try:
        assert torch.ones(1).device == torch.device("fl:1")
    finally:
        torch.set_default_device(None)
    with torch.profiler.profile() as profile:
        torch.mm(*torch.randn(2, 4, 4, device="fl:0"))
    assert "aten::mm" in {event.key for event in profile.key_averages()}


def test_an_embedding_and_clipping():
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 4).to("fl:0")
    embedding(torch.tensor([1, 2, 1], device="fl:0")).sum().backward()
    norm = nn.utils.clip_grad_norm_(embedding.parameters(), 1.0)
    assert norm.device == torch.device("fl:0")
    assert norm.item() == pytest.approx(20**0.5)

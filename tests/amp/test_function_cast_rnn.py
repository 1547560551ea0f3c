"""Recurrent modules and cells at O1."""

from collections import namedtuple

import pytest
import torch
from support.tolerances import HALF_RECURRENCE, HALF_TRAINING
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from lightning_mp.amp.function_casts import FunctionCasts

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

NETS = {
    "lstm": lambda: nn.LSTM(5, 7, 2, batch_first=True),
    "gru": lambda: nn.GRU(5, 7, 2, batch_first=True),
    "rnn tanh": lambda: nn.RNN(5, 7, batch_first=True),
    "rnn relu": lambda: nn.RNN(5, 7, batch_first=True, nonlinearity="relu"),
    "bidirectional": lambda: nn.LSTM(5, 7, batch_first=True, bidirectional=True),
    "projection": lambda: nn.LSTM(5, 7, batch_first=True, proj_size=3),
    "no bias": lambda: nn.GRU(5, 7, batch_first=True, bias=False),
}


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def half(request):
    torch.manual_seed(3)
    return request.param


@pytest.fixture
def casts(half):
    return FunctionCasts(half, implementation="python")


def data(output):
    return output.data if isinstance(output, PackedSequence) else output


def gradients(net, x, casts=None):
    net.zero_grad()
    if casts is None:
        output = net(x)[0]
    else:
        with casts.context():
            output = net(x)[0]
    data(output).float().square().sum().backward()
    return data(output), [parameter.grad.clone() for parameter in net.parameters()]


def check(net, x, casts):
    expected, expected_grads = gradients(net, x)
    output, grads = gradients(net, x, casts)
    assert output.dtype == casts.half_dtype
    torch.testing.assert_close(output.float(), expected, **HALF_TRAINING)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        torch.testing.assert_close(grad, expected_grad, **HALF_RECURRENCE)


@pytest.mark.parametrize("name", NETS)
def test_modules(name, casts):
    check(NETS[name](), torch.randn(3, 4, 5), casts)


@pytest.mark.parametrize("name", NETS)
def test_packed_input(name, casts):
    lengths = torch.tensor([4, 2, 1])
    check(NETS[name](), pack_padded_sequence(torch.randn(3, 4, 5), lengths, True), casts)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_half_input_is_not_refused(name, casts, half):
    net = NETS[name]()
    with casts.context():
        output, _ = net(torch.randn(3, 4, 5).to(half))
        with_state, _ = net(output[..., :5], net(output[..., :5])[1])
    assert output.dtype == with_state.dtype == half


@pytest.mark.parametrize("cell_class", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(cell_class, casts, half):
    cell, x = cell_class(5, 7), torch.randn(3, 5)
    with casts.context():
        state = cell(x)
        state = cell(x.to(half), state)
    state = state[0] if isinstance(state, tuple) else state
    assert state.dtype == half
    state.float().sum().backward()
    assert {parameter.grad.dtype for parameter in cell.parameters()} == {torch.float32}


def test_state_in_a_namedtuple(casts, half):
    net, state_class = nn.LSTM(5, 7, batch_first=True), namedtuple("State", "hidden cell")
    x, zeros = torch.randn(3, 4, 5), torch.zeros(1, 3, 7)
    with casts.context():
        output, _ = net(x, state_class(zeros, zeros))
        assert torch.equal(output, net(x)[0])
    assert output.dtype == half


def test_weight_norm(casts):
    net = nn.LSTM(5, 7, batch_first=True)
    nn.utils.weight_norm(net, "weight_hh_l0")
    check(net, torch.randn(3, 4, 5), casts)


def test_parametrized_weight(casts):
    net = nn.GRU(5, 7, batch_first=True)
    nn.utils.parametrizations.weight_norm(net, "weight_hh_l0")
    check(net, torch.randn(3, 4, 5), casts)


def test_shared_weights(casts):
    net = nn.LSTM(7, 7, 2, batch_first=True)
    net.weight_ih_l1 = net.weight_ih_l0
    check(net, torch.randn(3, 4, 7), casts)


def test_unflattened_weights(casts):
    net = nn.LSTM(5, 7, batch_first=True)
    for name, parameter in list(net.named_parameters()):
        setattr(net, name, nn.Parameter(parameter.detach().clone()))
    check(net, torch.randn(3, 4, 5), casts)

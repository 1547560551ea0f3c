import pytest
import torch
from support.tolerances import HALF_STEP
from torch import nn

from lightning_mp.fp16_utils import (
    BN_convert_float,
    FP16Model,
    convert_module,
    convert_network,
    network_to_half,
    tofp16,
)

HALVES = [torch.float16, torch.bfloat16]


class Net(nn.Module):
    """Every kind of part that the conversion treats in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.bare_norm = nn.BatchNorm1d(7, affine=False)
        self.layer_norm = nn.LayerNorm(7)
        self.rnn = nn.LSTM(7, 3)
        self.tied = nn.Linear(5, 7)
        self.tied.weight = self.linear.weight
        self.register_buffer("offset", torch.ones(7))
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.layer_norm(self.bare_norm(self.norm(self.linear(x)))) + self.offset
        return self.rnn(hidden)[0] if index is None else self.rnn(hidden)[0][index]


@pytest.mark.parametrize("dtype", HALVES)
def test_network_is_cast_but_for_batch_norms_with_weights(dtype: torch.dtype):
    net = Net()
    weight = net.linear.weight
    assert convert_network(net, dtype) is net
    kept = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    for name, tensor in net.state_dict().items():
        if name == "count" or name.endswith("num_batches_tracked"):
            assert tensor.dtype == torch.int64, name
        else:
            assert tensor.dtype == (torch.float32 if name in kept else dtype), name
    assert net.linear.weight is weight is net.tied.weight
    assert net.nothing is None
    net(torch.randn(4, 5, dtype=dtype)).float().sum().backward()
    assert net.linear.weight.grad.dtype == dtype
    assert net.norm.weight.grad.dtype == torch.float32


def test_network_is_cast_back():
    net = convert_network(convert_network(Net(), torch.bfloat16), torch.float32)
    assert {item.dtype for item in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", HALVES)
def test_module_is_cast_with_its_gradients_and_without_its_children(dtype: torch.dtype):
    net = nn.Linear(3, 5)
    net.child = nn.Linear(5, 5)
    net.weight.grad = torch.full((5, 3), 0.5)
    convert_module(net, dtype)
    assert (net.weight.dtype, net.weight.grad.dtype, net.bias.grad) == (dtype, dtype, None)
    assert torch.equal(net.weight.grad.float(), torch.full((5, 3), 0.5))
    assert net.child.weight.dtype == torch.float32


@pytest.mark.parametrize("convert", [convert_network, convert_module])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, "half"])
def test_other_dtypes_are_refused_before_anything_is_cast(convert, dtype):
    net = Net()
    with pytest.raises(ValueError, match=r"dtype = .*; allowed are torch\.float16, torch\.bfl"):
        convert(net, dtype)
    assert net.linear.weight.dtype == torch.float32


def test_batch_norms_with_weights_are_cast_back_to_fp32():
    net = Net().half()
    assert BN_convert_float(net) is net
    assert net.norm.weight.dtype == net.norm.running_mean.dtype == torch.float32
    assert net.bare_norm.running_mean.dtype == net.linear.weight.dtype == torch.float16


def test_input_cast_leaves_integers_and_containers():
    data = {"x": torch.ones(3), "index": torch.arange(3), "name": "a"}
    cast = tofp16()(data)
    assert (cast["x"].dtype, cast["index"].dtype) == (torch.float16, torch.int64)
    assert cast["name"] == "a"


@pytest.mark.parametrize("wrap", [network_to_half, FP16Model])
def test_wrapped_network_takes_fp32_inputs_and_computes_what_fp32_does(wrap):
    torch.manual_seed(0)
    net, inputs = Net(), torch.randn(7, 5)
    expected = net(inputs)
    found = wrap(net)(inputs)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, **HALF_STEP)


def test_model_wrapper_keeps_integer_inputs_and_takes_keywords():
    model = FP16Model(Net())
    index = torch.tensor([2, 0])
    assert model.network.linear.weight.dtype == torch.float16
    assert torch.equal(model(torch.ones(4, 5), index), model(x=torch.ones(4, 5), index=index))

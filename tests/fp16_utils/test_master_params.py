import copy

import pytest
import torch
from support.engine import Mlp, make_batches, train_plain
from support.tolerances import HALF_TRAINING
from torch import nn
from torch.nn import functional as F

from lightning_mp.fp16_utils import (
    clip_grad_norm,
    convert_network,
    master_params_to_model_params,
    model_grads_to_master_grads,
    prep_param_lists,
    to_python_float,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("flat", [False, True])
def test_loop_over_master_lists_trains_like_fp32(dtype: torch.dtype, flat: bool):
    batches = make_batches(20)
    plain = Mlp()
    model = convert_network(copy.deepcopy(plain), dtype)
    expected = train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batches)
    model_params, master_params = prep_param_lists(model, flat_master=flat)
    optimizer = torch.optim.SGD(master_params, lr=0.1)
    losses = []
    for inputs, targets in batches:
        model.zero_grad()
        loss = F.mse_loss(model(inputs.to(dtype)).float(), targets)
        loss.backward()
        model_grads_to_master_grads(model_params, master_params, flat_master=flat)
        if not flat:  # as in the plain loop, where weights without a gradient are left alone
            with_grad = [item.grad is None for item in model_params]
            assert [item.grad is None for item in master_params] == with_grad
        clip_grad_norm(master_params, 1e3)
        optimizer.step()
        master_params_to_model_params(model_params, master_params, flat_master=flat)
        losses.append(loss.item())
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **HALF_TRAINING)
    joined = torch.cat([item.detach().reshape(-1) for item in master_params])
    halves = torch.cat([item.detach().reshape(-1) for item in model_params])
    assert torch.equal(joined.to(dtype), halves)
    assert not torch.equal(joined, halves.float())


def test_frozen_parameters_are_in_neither_list():
    model = Mlp()
    model.first.weight.requires_grad_(False)
    model_params, master_params = prep_param_lists(model)
    assert len(model_params) == len(master_params) == len(list(model.parameters())) - 1
    assert all(item.dtype == torch.float32 and item.requires_grad for item in master_params)
    assert model_params[0] is not master_params[0]
    assert model_params[0].data_ptr() != master_params[0].data_ptr()


def test_gradients_are_written_into_those_there_are():
    model_params, master_params = prep_param_lists(nn.Linear(3, 5).half())
    model_params[0].grad = torch.full((5, 3), 2.0, dtype=torch.float16)
    model_grads_to_master_grads(model_params, master_params)
    first = master_params[0].grad
    model_params[0].grad = torch.full((5, 3), 3.0, dtype=torch.float16)
    model_grads_to_master_grads(model_params, master_params)
    assert master_params[0].grad is first
    assert torch.equal(first, torch.full((5, 3), 3.0))
    model_params[0].grad = None
    model_grads_to_master_grads(model_params, master_params)
    assert master_params[0].grad is None


def test_flat_master_of_mixed_dtypes_is_refused():
    model = nn.Sequential(nn.Linear(3, 5).half(), nn.BatchNorm1d(5))
    with pytest.raises(ValueError, match=r"flat_master = True with parameters in torch\.float16 "):
        prep_param_lists(model, flat_master=True)


def test_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="Linear has 0 trainable parameters"):
        prep_param_lists(nn.Linear(3, 5).requires_grad_(False))


@pytest.mark.parametrize("call", [model_grads_to_master_grads, master_params_to_model_params])
@pytest.mark.parametrize("made_flat", [False, True])
def test_lists_of_the_other_kind_are_refused(call, made_flat: bool):
    lists = prep_param_lists(nn.Linear(3, 5).half(), flat_master=made_flat)
    with pytest.raises(ValueError, match="pass both lists of one prep_param_lists call"):
        call(*lists, flat_master=not made_flat)


@pytest.mark.parametrize("value", [torch.tensor(1.5), torch.tensor([1.5]), [1.5]])
def test_python_float(value):
    assert to_python_float(value) == 1.5

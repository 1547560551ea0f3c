"""The casts of O1 follow the models: which devices they are for, and when that changes."""

import pytest
import torch
from support.o1_implementations import HAS_NATIVE
from torch import nn

from lightning_mp.amp import forward_casts
from lightning_mp.amp.forward_casts import ForwardCasts
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.opt_levels import resolve_opt_level


class Product(nn.Module):
    def forward(self, x):
        self.seen = (x @ x).dtype
        return x


def buffers_on(device):
    module = Product()
    module.register_buffer("mask", torch.ones(3, device=device))
    return module


def casts_of(*models):
    properties = resolve_opt_level("O1", half_dtype=torch.bfloat16)
    casts = ForwardCasts(
        properties,
        output_dtype=None,
        allow_banned=False,
        raises_inputs=False,
        implementation="auto",
    )
    casts.add(models, MasterWeights(nn.Module(), properties))
    return casts


@pytest.mark.parametrize(
    ("models", "device_types"),
    [
        ([nn.Linear(3, 3)], ("cpu",)),
        ([nn.Linear(3, 3), nn.Linear(3, 3, device="meta")], ("cpu", "meta")),
        ([nn.Linear(3, 3), buffers_on("meta")], ("cpu",)),
        ([buffers_on("meta")], ("meta",)),
        ([Product()], ("some accelerator",)),
    ],
)
def test_devices_are_those_of_the_models(models, device_types, monkeypatch):
    monkeypatch.setattr(forward_casts, "default_device_type", lambda: "some accelerator")
    casts = casts_of(*models)
    assert casts.functions.device_types == device_types
    is_native = HAS_NATIVE and device_types == ("cpu",)
    assert casts.functions.implementation == ("native" if is_native else "python")
    casts.remove()


def test_a_model_without_weights_is_cast():
    model = Product()
    casts = casts_of(model)
    assert model(torch.ones(3, 3)).dtype == torch.float32
    assert model.seen == torch.bfloat16
    casts.remove()
    model(torch.ones(3, 3))
    assert model.seen == torch.float32


def test_casts_follow_a_model_to_another_device():
    model = nn.Sequential(nn.Linear(3, 3, device="meta"), Product())
    casts = casts_of(model)
    before = casts.functions
    assert model(torch.ones(5, 3, device="meta")[:3]).dtype == torch.float32
    assert model[1].seen == torch.bfloat16
    casts.follow_devices()
    assert casts.functions is before
    for device in ("cpu", "meta", "cpu"):
        model.to_empty(device=device)
        model[1].seen = None
        model(torch.ones(3, 3, device=device))
        assert model[1].seen == torch.bfloat16
        assert casts.functions.device_types == (device,)
        is_native = HAS_NATIVE and device == "cpu"
        assert casts.functions.implementation == ("native" if is_native else "python")
        assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == (1, 1)

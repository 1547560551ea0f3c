"""Bfloat16 moments behind half weights: Trainer, Fabric and the Apex API."""

import copy
import math
from typing import Any

import pytest
import torch
from support.engine import Mlp, make_batches
from support.fabric import make_fabric_plugin
from support.fabric import start as start_fabric
from support.fabric import train as train_fabric
from support.passes import Passes
from support.training import SmallModule, make_loader, make_plugin, make_trainer
from torch import Tensor
from torch.nn import functional as F

from lightning_mp import amp
from lightning_mp.optim import FusedAdam, FusedAdamW

BF16 = torch.bfloat16
FORMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "split": {"master_weights": "split"},
    "not fused": {"fused": False},
}


class Module(SmallModule):
    """Trains with an optimizer of ours."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def configure_optimizers(self) -> Any:
        return FusedAdamW(self.parameters(), lr=1e-2, **self.options)


def fit(folder: Any, level: str, form: str, max_epochs: int = 2, **kwargs: Any) -> Any:
    module = Module(state_dtype="bf16")
    path = kwargs.pop("ckpt_path", None)
    plugin = make_plugin(level, **FORMS[form])
    trainer = make_trainer(folder, plugin, max_epochs=max_epochs, gradient_clip_val=0.3, **kwargs)
    trainer.fit(module, make_loader(), ckpt_path=path)
    return trainer


def values(trainer: Any) -> list[Tensor]:
    found = [item.detach().clone() for item in trainer.lightning_module.parameters()]
    for _, entry in sorted(trainer.optimizers[0].state_dict()["state"].items()):
        found += [entry["exp_avg"], entry["exp_avg_sq"]]
    return found


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("level", "form"),
    [("O0", "whole"), ("O2", "whole"), *(("O2-bf16", form) for form in FORMS)],
)
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Any, level: str, form: str) -> None:
    whole = fit(tmp_path, level, form)
    first = fit(tmp_path, level, form, max_epochs=1)
    first.save_checkpoint(tmp_path / "one.ckpt")
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)["optimizer_states"][0]
    assert saved["state"][0]["exp_avg"].dtype == BF16
    torch.manual_seed(12345)
    resumed = fit(tmp_path, level, form, ckpt_path=tmp_path / "one.ckpt")
    assert same(values(resumed), values(whole))
    assert values(whole)[-1].dtype == BF16


def test_masters_move_alike_however_they_are_stored(tmp_path: Any) -> None:
    split, whole = fit(tmp_path, "O2-bf16", "split"), fit(tmp_path, "O2-bf16", "whole")
    for one, other in zip(values(split), values(whole), strict=True):
        # Half weights that are between two others are rounded another way.
        torch.testing.assert_close(one, other, rtol=0.05, atol=2e-3)


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_overflowed_changes_nothing(form: str) -> None:
    model = Mlp()
    optimizer = FusedAdam(model.parameters(), lr=1e-2, state_dtype="bf16")
    options: dict[str, Any] = {"half_dtype": "bf16", "verbosity": 0, **FORMS[form]}
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", **options)
    snapshots = []
    for index, (inputs, targets) in enumerate(make_batches(4)):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets) * (math.inf if index == 2 else 1.0)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict()["state"])
        snapshots.append([item for entry in state.values() for item in entry.values()])
    assert {item.dtype for item in snapshots[-1]} == {BF16, torch.float32}
    assert same(snapshots[1], snapshots[2])
    assert not same(snapshots[2], snapshots[3])


def test_the_step_makes_no_full_tensors() -> None:
    model = Mlp()
    optimizer = FusedAdam(model.parameters(), lr=1e-2, state_dtype="bf16")
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O2", half_dtype="bf16", master_weights="split", verbosity=0
    )
    for index, (inputs, targets) in enumerate(make_batches(2)):
        optimizer.zero_grad()
        with amp.scale_loss(F.mse_loss(model(inputs), targets), optimizer) as scaled_loss:
            scaled_loss.backward()
        with Passes() as passes:
            optimizer.step()
        if index:
            assert passes.others == []


def test_fabric_repeats_and_keeps_the_dtype() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        plugin = make_fabric_plugin("O2-bf16", master_weights="split")
        fabric, model, optimizer = start_fabric(
            plugin, lambda items: FusedAdamW(items, lr=1e-2, state_dtype="bf16")
        )
        losses = train_fabric(fabric, model, optimizer)
        entries = optimizer.state_dict()["state"].values()
        assert all(entry["exp_avg_sq"].dtype == BF16 for entry in entries)
        results.append(losses)
    assert results[0] == results[1]


def test_a_state_that_was_loaded_before_the_set_up_is_kept() -> None:
    optimizers = []
    for _ in range(2):
        model = Mlp().bfloat16()
        optimizers.append(FusedAdamW(model.parameters(), state_dtype="bf16"))
        for item in model.parameters():
            item.grad = torch.ones_like(item)
    first, second = optimizers
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    plugin = make_fabric_plugin("O2-bf16")
    fabric, _, wrapped = start_fabric(plugin, lambda _: second, model=Mlp())
    fabric.strategy.precision.teardown()
    moments = [entry["exp_avg"] for entry in first.state_dict()["state"].values()]
    kept = [entry["exp_avg"] for entry in wrapped.state_dict()["state"].values()]
    assert same(kept, moments)


def test_torch_keeps_fp32_moments_after_a_state_of_ours(tmp_path: Any) -> None:
    trainer = fit(tmp_path, "O2-bf16", "whole", max_epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    plain = SmallModule()
    plain.configure_optimizers = lambda: torch.optim.AdamW(plain.parameters(), lr=1e-2)
    other = make_trainer(tmp_path, make_plugin("O2-bf16"), max_epochs=2)
    other.fit(plain, make_loader(), ckpt_path=tmp_path / "one.ckpt")
    assert values(other)[-1].dtype == torch.float32

"""Inside the stock Trainer a step at O2 is two passes over memory, clipping included."""

from typing import Any

import pytest
import torch
from support.passes import COPY, STATS, STEPS, Passes
from support.training import SmallModule, make_loader, make_plugin, make_trainer

from lightning_mp.amp import optimizer_step
from lightning_mp.callbacks import MasterGradClip
from lightning_mp.optim import FusedAdam, FusedAdamW, FusedSGD

CLIPS: list[dict[str, Any]] = [
    {},
    {"gradient_clip_val": 0.3},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    {"callbacks": [MasterGradClip(max_norm=0.3)]},
]
OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (FusedAdamW, {}),
    (FusedAdam, {}),
    (FusedSGD, {}),
]


class Module(SmallModule):
    def __init__(self, optimizer_class: Any, **options: Any) -> None:
        super().__init__()
        self.optimizer_class, self.options = optimizer_class, options

    def configure_optimizers(self) -> Any:
        return self.optimizer_class(self.parameters(), lr=0.05, **self.options)


class Reader(Module):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert all(item.grad.dtype == torch.float32 for item in self.parameters())


def fit(tmp_path, module, level="O2", fused=True, **options):
    plugin = make_plugin(level, fused=fused)
    trainer = make_trainer(tmp_path, plugin, **options)
    trainer.fit(module, make_loader())
    return trainer, plugin


def count(monkeypatch, path="fast") -> list[Passes]:
    """Count what happens in each step, after forward and backward."""
    found: list[Passes] = []
    step = optimizer_step.OptimizerStep.step

    def counted(self, *args, **kwargs):
        with Passes() as passes:
            step(self, *args, **kwargs)
        assert self.path == path
        found.append(passes)

    monkeypatch.setattr(optimizer_step.OptimizerStep, "step", counted)
    return found


@pytest.mark.parametrize("level", ["O2", "O2-bf16"])
@pytest.mark.parametrize("clip", CLIPS, ids=["none", "norm", "value", "callback"])
@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
def test_a_step_is_two_passes(tmp_path, monkeypatch, level, clip, optimizer_class, options):
    found = count(monkeypatch)
    trainer, plugin = fit(tmp_path, Module(optimizer_class, **options), level, **clip)
    assert trainer.global_step == len(found) == 8
    assert plugin.skipped_steps == 0
    # The first step makes the optimizer's state.
    for passes in found[1:]:
        assert passes.kernels[0] == STATS
        assert passes.kernels[1] in STEPS
        assert len(passes.kernels) == 2
        assert passes.others == []


def test_the_counter_counts(tmp_path, monkeypatch):
    found = count(monkeypatch, "plain")
    fit(tmp_path, Module(torch.optim.AdamW), fused=False, gradient_clip_val=0.3)
    assert all(passes.float32 for passes in found)
    assert not any(set(passes.kernels) & set(STEPS) for passes in found)


def test_a_reader_costs_float32_gradients(tmp_path, monkeypatch):
    found = count(monkeypatch, "looked")
    fit(tmp_path, Reader(torch.optim.AdamW), gradient_clip_val=0.3)
    assert all(passes.float32 for passes in found)
    # Unscaled and checked at once; the norm of the clipping; the step.
    assert {tuple(passes.kernels) for passes in found} == {(COPY, STATS, STEPS[0])}


def test_a_reader_without_clipping_costs_no_other_pass(tmp_path, monkeypatch):
    found = count(monkeypatch, "looked")
    fit(tmp_path, Reader(torch.optim.AdamW))
    for passes in found[1:]:
        assert passes.kernels == [COPY, STEPS[0]]
        assert passes.others == []


@pytest.mark.parametrize("clip", CLIPS, ids=["none", "norm", "value", "callback"])
@pytest.mark.parametrize(("optimizer_class", "options"), OPTIMIZERS)
def test_looking_changes_no_bit(tmp_path, clip, optimizer_class, options):
    weights = []
    for module_class in (Module, Reader):
        module = module_class(optimizer_class, **options)
        fit(tmp_path, module, **clip)
        weights.append([item.detach().clone() for item in module.parameters()])
    assert all(map(torch.equal, *weights))

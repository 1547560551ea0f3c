import lightning as L
import pytest
import torch

from benchkit.column import PRECISIONS, parse_column
from benchkit.fit import fit
from benchkit.module import BenchModule
from benchkit.step_timer import StepTimer
from benchkit.workload import make_workload


class PathRecorder(L.Callback):
    def __init__(self):
        self.paths = []

    def on_train_batch_end(self, trainer, pl_module, *args, **kwargs):
        (step,) = trainer.precision_plugin.engine.steps.values()
        self.paths.append(step.path)


def make_module(column, workload="mlp"):
    return BenchModule(make_workload(workload, is_smoke=True), parse_column(column))


@pytest.mark.parametrize("precision", [*PRECISIONS, "bf16-mixed/fused", "bf16-true/fused"])
def test_every_column_is_timed(precision):
    timer, module = StepTimer(), make_module(precision)
    fit(module, make_workload("mlp", is_smoke=True).make_batches(3), [timer])
    assert len(timer.steps) == len(timer.optimizer_parts) == len(module.losses) == 3
    for step, part in zip(timer.steps, timer.optimizer_parts, strict=True):
        assert 0 < part.wall < step.wall
        assert 0 < part.cpu < step.cpu


@pytest.mark.parametrize("workload", ["resnet18", "transformer"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "O2", "O2-bf16", "O3-bf16"])
def test_every_workload_trains(workload, precision):
    module = make_module(precision, workload)
    fit(module, make_workload(workload, is_smoke=True).make_batches(2), [])
    assert torch.stack(module.losses).isfinite().all()


def test_measuring_leaves_the_fast_path_on():
    recorder = PathRecorder()
    batches = make_workload("mlp", is_smoke=True).make_batches(2)
    fit(make_module("O2-bf16"), batches, [StepTimer(), recorder])
    assert recorder.paths == ["fast", "fast"]


def test_a_module_without_the_second_clock_is_refused():
    with pytest.raises(TypeError, match="module = LightningModule; allowed: BenchModule"):
        StepTimer().on_train_batch_end(
            L.Trainer(accelerator="cpu", logger=False), L.LightningModule()
        )

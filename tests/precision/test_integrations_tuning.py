"""Finders that try out and then restore: nothing may stay changed."""

import copy

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from support.levels import INTEGRATION_LEVELS
from support.training import SmallModule, is_equal, make_loader, make_plugin, make_trainer, weights

# Lightning's finders warn of loaders, of their own trial loops and of the schedule they replace.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.pytorch")


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.batch_size = 7

    def train_dataloader(self):
        return make_loader(112, self.batch_size)


class Start(Callback):
    """What the first real batch starts from."""

    state = None

    def on_train_start(self, trainer, pl_module):
        plugin, optimizer = trainer.precision_plugin, trainer.optimizers[0]
        self.state = {
            "saved": weights(pl_module),
            "own": {name: item.detach().clone() for name, item in pl_module.named_parameters()},
            "plugin": copy.deepcopy(plugin.state_dict()),
            "optimizer": copy.deepcopy(optimizer.state_dict()["state"]),
            "steps": trainer.global_step,
        }


def make_level(level):
    """A level whose scale moves within a few steps, where it has one that moves."""
    plugin = make_plugin(level)
    if not plugin.engine.properties.is_dynamic:
        return plugin
    return make_plugin(level, init_scale=2.0**18, growth_interval=2)


def start_of(folder, level, *finders):
    start, module = Start(), SmallModule("SGD", momentum=0.9)
    trainer = make_trainer(
        folder,
        make_level(level),
        callbacks=[*finders, start],
        enable_checkpointing=True,
    )
    trainer.fit(module, datamodule=Data())
    return start.state, module, trainer


@pytest.mark.parametrize("kind", ["batch size", "learning rate"])
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_finders_leave_no_trace(tmp_path, level, kind):
    finder = (
        BatchSizeFinder(steps_per_trial=3, init_val=7, max_trials=2)
        if kind == "batch size"
        else LearningRateFinder(num_training_steps=40, attr_name="lr")
    )
    expected, plain, _ = start_of(tmp_path, level)
    found, module, trainer = start_of(tmp_path, level, finder)
    assert is_equal(found["saved"], expected["saved"])
    assert is_equal(found["own"], expected["own"])
    assert found["plugin"] == expected["plugin"]
    assert found["steps"] == expected["steps"] == 0
    assert str(found["optimizer"]) == str(expected["optimizer"])
    if kind == "batch size":
        assert trainer.datamodule.batch_size > 7
        # It did try: more losses than the fit itself has.
        assert len(module.losses) > trainer.num_training_batches
    else:
        assert module.lr == finder.optimal_lr.suggestion() != plain.lr
        assert len(finder.optimal_lr.results["loss"]) > 12


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_the_tuner_restores_the_model(tmp_path, level):
    module = SmallModule("SGD")
    before = weights(module)
    trainer = make_trainer(tmp_path, make_level(level), enable_checkpointing=True)
    found = Tuner(trainer).lr_find(module, make_loader(112), num_training=12, attr_name="lr")
    assert len(found.results["loss"]) > 5
    half = trainer.precision_plugin.engine.properties.half_dtype
    if level.startswith("O3"):  # half weights are the truth there as soon as a fit starts
        before = {name: value.to(half).float() for name, value in before.items()}
    assert is_equal(weights(module), before)
    assert {item.dtype for item in module.parameters()} == {torch.float32}

"""What users of Lightning's own mixed precision reported, by the number of the issue."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder
from support.levels import INTEGRATION_LEVELS, assert_follows_fp32, make_steady_plugin
from support.training import SmallModule, make_loader, make_plugin, make_trainer, weights
from torch import nn
from torch.nn import functional as F
from torch.overrides import _len_torch_function_stack


class OneIdle(SmallModule):
    """Steps two optimizers, one of which never gets a gradient."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.idle = nn.Linear(13, 3)

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        self.manual_backward(F.mse_loss(self.net(batch[0]), batch[1]))
        for optimizer in optimizers:
            self.clip_gradients(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        parts = (self.idle, self.net)
        return [torch.optim.SGD(part.parameters(), lr=0.1, weight_decay=0.1) for part in parts]


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_4524_7792_an_optimizer_without_gradients_may_step(tmp_path, level):
    reference, module = OneIdle(), OneIdle()
    make_trainer(tmp_path).fit(reference, make_loader())
    plugin = make_steady_plugin(level)
    make_trainer(tmp_path, plugin).fit(module, make_loader())
    assert_follows_fp32(module, reference, level)
    if not level.startswith("O3"):
        assert torch.equal(module.idle.weight, OneIdle().idle.weight)
    assert plugin.skipped_steps == 0


class LoggedInHalf(SmallModule):
    def validation_step(self, batch, batch_idx):
        value = self.net(batch[0]).mean() * 0 + 1.0 + 0.001 * batch_idx
        self.log("mean", value)
        self.dtype_of_value = value.dtype


@pytest.mark.parametrize("level", ["O2", "O2-bf16", "O3-bf16"])
def test_18620_18982_the_epoch_mean_of_half_values_is_exact(tmp_path, level):
    module = LoggedInHalf()
    plugin = make_plugin(level)
    trainer = make_trainer(tmp_path, plugin)
    trainer.validate(module, make_loader(num_samples=1000, batch_size=1), verbose=False)
    assert module.dtype_of_value == plugin.engine.properties.half_dtype
    # Summed in bfloat16, it would stop growing at 256.
    assert float(trainer.callback_metrics["mean"]) == pytest.approx(1.4995, abs=1e-3)


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_19987_a_last_short_window_is_weighted_as_in_fp32(tmp_path, level):
    kwargs = {"accumulate_grad_batches": 4, "limit_train_batches": 5, "gradient_clip_val": 0.3}
    reference, module = SmallModule("SGD", lr=0.1), SmallModule("SGD", lr=0.1)
    make_trainer(tmp_path, **kwargs).fit(reference, make_loader())
    trainer = make_trainer(tmp_path, make_steady_plugin(level), **kwargs)
    trainer.fit(module, make_loader())
    assert trainer.global_step == 2
    assert_follows_fp32(module, reference, level)


class Data(LightningDataModule):
    def __init__(self):
        super().__init__()
        self.batch_size = 7

    def train_dataloader(self):
        return make_loader(112, self.batch_size)


class OutOfMemory(SmallModule):
    """Runs out of memory above 14 samples, in the forward or after the backward."""

    def __init__(self, where):
        super().__init__("SGD")
        self.where = where
        self.net[0].register_forward_hook(lambda *call: self.allocate("forward"))

    def allocate(self, where):
        if where == self.where and self.num_samples > 14:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    def on_train_batch_start(self, batch, batch_idx):
        self.num_samples = len(batch[0])

    def on_after_backward(self):
        self.allocate("backward")


# Lightning's finder warns of loaders and of its own trial loops.
@pytest.mark.filterwarnings("ignore::UserWarning:lightning.pytorch")
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("level", ["O1", "O2-bf16"])
def test_18985_running_out_of_memory_leaves_nothing_behind(tmp_path, level, where):
    finder = BatchSizeFinder(steps_per_trial=2, init_val=7, max_trials=3)
    module, data, plain = OutOfMemory(where), Data(), SmallModule("SGD")
    plugin = make_steady_plugin(level)
    trainer = make_trainer(tmp_path, plugin, callbacks=[finder], enable_checkpointing=True)
    trainer.fit(module, datamodule=data)
    assert data.batch_size == 14
    assert _len_torch_function_stack() == 0
    assert not torch.is_autocast_enabled("cpu")
    make_trainer(tmp_path, make_steady_plugin(level)).fit(plain, make_loader(112, 14))
    for name, value in weights(plain).items():
        assert torch.equal(weights(module)[name], value)
    assert plugin.skipped_steps == 0

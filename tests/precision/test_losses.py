"""Several losses with a scaler each, in manual optimisation and in Fabric."""

import contextlib

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.engine import make_batches
from support.fabric import make_adam, make_fabric, make_fabric_plugin
from support.tolerances import HALF_TRAINING
from support.training import SmallGAN, is_equal, make_loader, make_plugin, make_trainer, weights
from torch import nn
from torch.nn import functional as F

from lightning_mp.callbacks import OverflowLogger

DYNAMIC = ["O1", "O1-bf16", "O2", "O2-bf16"]
SCALE = {"loss_scale": "dynamic", "init_scale": 1024.0, "growth_interval": 100}


class NamedGAN(SmallGAN):
    """A GAN whose discriminator's loss is loss 1; without scalers it skips by itself."""

    def _update(self, optimizer, loss):
        plugin = self.trainer.precision_plugin
        is_discriminator = optimizer.optimizer is self.trainer.optimizers[1]
        optimizer.zero_grad()
        has_losses = hasattr(plugin, "loss")
        with plugin.loss(int(is_discriminator)) if has_losses else contextlib.nullcontext():
            self.manual_backward(loss)
        if has_losses or loss.isfinite():
            optimizer.step()


def fit(folder, precision, bad=(), **kwargs):
    module = NamedGAN()
    module.bad_discriminator_batches = bad
    trainer = make_trainer(folder, precision, **kwargs)
    trainer.fit(module, make_loader())
    return module, trainer


@pytest.mark.parametrize("level", DYNAMIC)
def test_inf_in_one_loss_skips_its_step_and_moves_its_scale_only(tmp_path, level):
    reference, _ = fit(tmp_path, "32-true", bad=(2, 5), max_epochs=2)
    logger = OverflowLogger()
    plugin = make_plugin(level, num_losses=2, **SCALE)
    module, _ = fit(tmp_path, plugin, bad=(2, 5), max_epochs=2, callbacks=[logger])
    assert plugin.loss_scales == (1024.0, 64.0)
    assert plugin.loss_scale == 1024.0
    assert plugin.skipped_steps == 4
    assert logger.num_overflows == {1: 4}
    assert all(name.startswith("discriminator") for name in logger.overflows_by_parameter)
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


class Records(Callback):
    def on_train_end(self, trainer, pl_module):
        self.records = trainer.precision_plugin.overflows(wait=True)


def test_records_and_log_name_the_scale_of_the_loss(tmp_path):
    records, logger = Records(), OverflowLogger()
    fit(tmp_path, make_plugin("O2", num_losses=2, **SCALE), bad=(2, 5), callbacks=[records])
    assert [(item.optimizer_index, item.scale, item.new_scale) for item in records.records] == [
        (1, 1024.0, 512.0),
        (1, 512.0, 256.0),
    ]
    plugin = make_plugin("O2", num_losses=2, **SCALE)
    _, trainer = fit(tmp_path, plugin, bad=(2, 5), callbacks=[logger])
    name = "lightning_mp/overflow/loss_scale"
    assert trainer.callback_metrics[name] == 1024.0
    assert trainer.callback_metrics[name + "_1"] == 256.0


@pytest.mark.parametrize("level", ["O0", *DYNAMIC, "O3-bf16"])
def test_naming_a_loss_works_at_every_level(tmp_path, level):
    plugin = make_plugin(level, num_losses=2)
    module, _ = fit(tmp_path, plugin)
    plain = SmallGAN()
    make_trainer(tmp_path, level).fit(plain, make_loader())
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(plain)[name], **HALF_TRAINING)
    assert plugin.skipped_steps == 0


class SharedTrunk(NamedGAN):
    """Two losses into the same weights before each step."""

    def __init__(self):
        super().__init__()
        self.bad_batches = ()

    def training_step(self, batch, batch_idx):
        optimizer, _ = self.optimizers()
        optimizer.zero_grad()
        named = getattr(self.trainer.precision_plugin, "loss", None)
        for index, target in enumerate((0.0, 1.0)):
            loss = (self.generator(batch[0][:, :5]) - target).square().mean()
            is_bad = index == 1 and batch_idx in self.bad_batches
            with named(index) if named else contextlib.nullcontext():
                self.manual_backward(loss * float("inf") if is_bad else loss)
        if named or batch_idx not in self.bad_batches:
            optimizer.step()


@pytest.mark.parametrize("level", DYNAMIC)
def test_two_losses_into_the_same_weights(tmp_path, level):
    modules = []
    plugin = make_plugin(level, num_losses=2, **SCALE)
    for precision in ("32-true", plugin):
        module = SharedTrunk()
        module.bad_batches = (3,)
        make_trainer(tmp_path, precision).fit(module, make_loader())
        modules.append(weights(module))
    assert plugin.loss_scales == (1024.0, 512.0)
    assert plugin.skipped_steps == 1
    for name, value in modules[1].items():
        torch.testing.assert_close(value, modules[0][name], **HALF_TRAINING)


@pytest.mark.parametrize("level", ["O1", "O2", "O2-bf16"])
def test_resume_is_bit_exact(tmp_path, level):
    def plugin():
        return make_plugin(level, num_losses=2, **SCALE)

    whole, _ = fit(tmp_path, plugin(), bad=(2,), max_epochs=3)
    _, first = fit(tmp_path, plugin(), bad=(2,), max_epochs=2)
    first.save_checkpoint(tmp_path / "two.ckpt")
    saved = torch.load(tmp_path / "two.ckpt", weights_only=True)["AmpPrecision"]
    assert [state["loss_scale"] for state in saved["losses"]] == [1024.0, 256.0]
    resumed = NamedGAN()
    resumed.bad_discriminator_batches = (2,)
    again = plugin()
    trainer = make_trainer(tmp_path, again, max_epochs=3)
    trainer.fit(resumed, make_loader(), ckpt_path=tmp_path / "two.ckpt")
    assert again.loss_scales == (1024.0, 128.0)
    assert again.skipped_steps == 3
    assert is_equal(weights(resumed), weights(whole))


def test_a_checkpoint_of_one_loss_starts_every_scale():
    one, two = make_plugin("O2", init_scale=512.0), make_plugin("O2", num_losses=2)
    two.load_state_dict(one.state_dict())
    assert two.loss_scales == (512.0, 512.0)


def test_a_checkpoint_of_several_losses_gives_its_first_scale_to_one():
    two, one = make_plugin("O2", num_losses=2, init_scale=512.0), make_plugin("O2")
    one.load_state_dict(two.state_dict())
    assert one.loss_scales == (512.0,)


def test_a_checkpoint_of_another_number_of_losses_is_refused():
    two, three = make_plugin("O2", num_losses=2), make_plugin("O2", num_losses=3)
    before = three.state_dict()
    with pytest.raises(ValueError, match=r"loss scales of 2 losses.*set num_losses=2"):
        three.load_state_dict(two.state_dict())
    assert three.state_dict() == before


@pytest.mark.parametrize("make", [make_plugin, make_fabric_plugin])
@pytest.mark.parametrize("loss_id", [-1, 2, 7])
def test_a_loss_that_does_not_exist_is_refused(make, loss_id):
    plugin = make("O2", num_losses=2)
    with (
        pytest.raises(IndexError, match=rf"loss_id = {loss_id}; allowed: 0 to 1"),
        plugin.loss(loss_id),
    ):
        pass


def test_losses_are_counted_from_0():
    plugin = make_plugin("O2", num_losses=2)
    with (
        pytest.raises(IndexError, match=r"0 to 1; set AmpPrecision\(num_losses=3\)"),
        plugin.loss(2),
    ):
        pass
    with pytest.raises(IndexError, match="0 to 1; count the losses from 0"), plugin.loss(-1):
        pass


@pytest.mark.parametrize("loss_id", ["generator", 1.0, None, True])
def test_a_loss_is_named_by_an_int(loss_id):
    plugin = make_plugin("O2", num_losses=2)
    with (
        pytest.raises(TypeError, match=r"loss_id = .*; allowed: an int from 0 to 1; count"),
        plugin.loss(loss_id),
    ):
        pass
    assert plugin._loss_id == 0


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_numbers_of_losses_that_are_none(number):
    with pytest.raises(ValueError, match="num_losses = "):
        make_plugin("O2", num_losses=number)


def test_an_exception_ends_the_naming():
    plugin = make_plugin("O2", num_losses=3)
    with pytest.raises(KeyError), plugin.loss(1), plugin.loss(2):
        raise KeyError
    assert plugin._loss_id == 0


@pytest.mark.parametrize("level", DYNAMIC)
def test_fabric_skips_and_moves_one_loss_only(level):
    def train(precision):
        torch.manual_seed(1)
        fabric = make_fabric(precision)
        models = [nn.Linear(13, 3), nn.Linear(13, 3)]
        pairs = [fabric.setup(model, make_adam(model.parameters())) for model in models]
        plugin = fabric.strategy.precision
        for index, (inputs, targets) in enumerate(make_batches(8)):
            for loss_id, (model, optimizer) in enumerate(pairs):
                is_bad = loss_id == 1 and index in (2, 5)
                optimizer.zero_grad()
                loss = F.mse_loss(model(inputs), targets) * (float("inf") if is_bad else 1.0)
                named = getattr(plugin, "loss", None)
                with named(loss_id) if named else contextlib.nullcontext():
                    fabric.backward(loss)
                if named or not is_bad:
                    optimizer.step()
        return plugin, models

    _, reference = train("32-true")
    plugin, models = train(make_fabric_plugin(level, num_losses=2, **SCALE))
    assert plugin.loss_scales == (1024.0, 256.0)
    assert plugin.skipped_steps == 2
    for model, plain in zip(models, reference, strict=True):
        torch.testing.assert_close(weights(model), weights(plain), **HALF_TRAINING)

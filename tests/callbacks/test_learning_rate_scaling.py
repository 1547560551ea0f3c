import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import CombinedLoader
from support.training import (
    SmallGAN,
    SmallModule,
    is_equal,
    make_loader,
    make_plugin,
    make_trainer,
    weights,
)
from torch.utils.data import DataLoader, IterableDataset

from lightning_mp.callbacks import BatchSizeWarmup, LearningRateScaling
from lightning_mp.callbacks.batch_size_source import loader_batch_size

FACTOR, SCALED = "lightning_mp/learning_rate/factor", "lightning_mp/learning_rate/scaled"
PRECISIONS = ["32-true", "bf16-mixed", "O0", "O1-bf16", "O2", "O2-bf16", "O3-bf16"]


class Logged(Callback):
    def __init__(self, name=FACTOR):
        self.name, self.values, self.rates, self.path = name, [], [], None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.name in trainer.callback_metrics:
            self.values.append(float(trainer.callback_metrics[self.name]))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_end(self, trainer, pl_module):
        if hasattr(trainer.precision_plugin, "engine"):
            self.path = trainer.precision_plugin.engine.step_of(trainer.optimizers[0]).path


def fit(tmp_path, precision="32-true", module=None, callbacks=(), **kwargs):
    module = module or SmallModule()
    if precision == "O2":
        precision = make_plugin("O2", init_scale=256.0)
    trainer = make_trainer(tmp_path, precision, callbacks=[*callbacks], **kwargs)
    trainer.fit(module, make_loader())
    return trainer


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("optimizer", "factor"), [("SGD", 4.0), ("AdamW", 2.0)])
def test_equals_a_run_at_the_scaled_rate(tmp_path, precision, optimizer, factor):
    # 28 samples a batch are 7 x 4 accumulated ones.
    scaled, expected = (SmallModule(optimizer, lr=lr) for lr in (1e-2, 1e-2 * factor))
    logged = Logged()
    scaling = LearningRateScaling(base_global_batch_size=7)
    kwargs = {"accumulate_grad_batches": 4, "max_epochs": 2}
    fit(tmp_path, precision, scaled, [scaling, logged], **kwargs)
    fit(tmp_path, precision, expected, **kwargs)
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(scaled)[name], value, rtol=1e-5, atol=1e-6)
    assert set(logged.values) == {factor}
    if precision.startswith("O2"):
        assert logged.path == "fast"


def test_schedulers_and_checkpoints_see_the_unscaled_rate(tmp_path):
    class Recursive(SmallModule):
        """Its scheduler multiplies whatever rate it finds."""

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    logged = Logged(SCALED)
    scaling = LearningRateScaling(base_global_batch_size=1, rule="linear")
    trainer = fit(tmp_path, "32-true", Recursive(), [scaling, logged], limit_train_batches=4)
    assert logged.rates == pytest.approx([0.05, 0.025, 0.0125, 0.00625])
    assert logged.values == pytest.approx([0.7, 0.35, 0.175, 0.0875])
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    state = torch.load(tmp_path / "c.ckpt", weights_only=True)["optimizer_states"][0]
    assert state["param_groups"][0]["lr"] == pytest.approx(0.00625)


def test_follows_a_growing_batch(tmp_path):
    logged = Logged()
    warmup = BatchSizeWarmup(7, 28, num_samples=42, increment=7)
    fit(tmp_path, "O2-bf16", None, [LearningRateScaling(7, rule="linear"), warmup, logged])
    # 7 for the first 14 samples, 14 for the next 14, 21 for the last 14, and then 28; the epoch's
    # last batch is short and keeps the factor of its planned size.
    assert logged.values == [1.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("kwargs", "factors"),
    [
        ({"warmup_samples": 28}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_fraction": 0.25}, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_fraction": 1.0}, [0.125 * step for step in range(1, 9)]),
    ],
)
def test_warmup(tmp_path, kwargs, factors):
    logged = Logged()
    fit(tmp_path, "32-true", None, [LearningRateScaling(7, "none", **kwargs), logged])
    assert logged.values == pytest.approx(factors)


def test_warmup_goes_on_after_a_resume(tmp_path):
    def scaling():
        return LearningRateScaling(14, warmup_samples=100)

    first, whole, second = SmallModule(), SmallModule(), SmallModule()
    trainer = fit(tmp_path, "O2-bf16", first, [scaling()])
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    fit(tmp_path, "O2-bf16", whole, [scaling()], max_epochs=2)
    trainer = make_trainer(tmp_path, "O2-bf16", callbacks=[scaling()], max_epochs=2)
    trainer.fit(second, make_loader(), ckpt_path=tmp_path / "c.ckpt")
    assert is_equal(weights(second), weights(whole))


def test_betas_and_eps_follow(tmp_path):
    scaled = SmallModule("AdamW", lr=1e-2, betas=(0.9, 0.99), eps=1e-4)
    expected = SmallModule("AdamW", lr=2e-2, betas=(0.6, 0.96), eps=5e-5)
    for precision in ("32-true", "O2-bf16"):
        fit(tmp_path, precision, scaled, [LearningRateScaling(2, "sqrt", scale_betas=True,
            global_batch_size=8)])  # fmt: skip
        fit(tmp_path, precision, expected)
        for name, value in weights(expected).items():
            torch.testing.assert_close(weights(scaled)[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["32-true", "O2-bf16"])
def test_manual_optimisation_with_two_optimizers(tmp_path, precision):
    first, second = Logged(), Logged(f"{FACTOR}_1")
    scaling = LearningRateScaling(14, warmup_samples=14)
    fit(tmp_path, precision, SmallGAN(), [scaling, first, second])
    root = 0.5**0.5
    # The generator steps first; its step counts the samples.
    assert first.values == pytest.approx([0.5 * root] + [root] * 7)
    assert second.values == pytest.approx([root] * 8)


def test_strategy_is_as_before(tmp_path):
    class Fails(SmallModule):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    trainer = fit(tmp_path, callbacks=[LearningRateScaling(7)])
    assert "optimizer_step" not in vars(trainer.strategy)
    trainer = make_trainer(tmp_path, callbacks=[LearningRateScaling(7)])
    with pytest.raises(KeyError, match="mine"):
        trainer.fit(Fails(), make_loader())
    assert "optimizer_step" not in vars(trainer.strategy)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(make_loader().dataset)


def test_loader_that_does_not_tell_is_refused(tmp_path):
    loader = DataLoader(Stream(), batch_size=None)
    for data in (loader, CombinedLoader([make_loader(), make_loader()])):
        trainer = make_trainer(tmp_path, callbacks=[LearningRateScaling(7)])
        with pytest.raises(ValueError, match="of the training loaders with LearningRateScaling"):
            trainer.fit(SmallModule(), data)
    trainer = make_trainer(tmp_path)
    trainer.fit(SmallModule(), DataLoader(Stream(), batch_size=9))
    assert loader_batch_size(trainer, asked_by="this test") == 9


def test_training_without_end_is_refused(tmp_path):
    scaling = LearningRateScaling(7, warmup_fraction=0.03)
    with pytest.raises(ValueError, match=r"warmup_fraction = 0\.03 of a training without end"):
        fit(tmp_path, callbacks=[scaling], max_epochs=-1)


def test_what_cannot_be_scaled_is_refused_before_the_first_step(tmp_path):
    module = SmallModule("AdamW")
    with pytest.raises(ValueError, match="at 28 times the base batch size"):
        fit(tmp_path, module=module, callbacks=[LearningRateScaling(1, scale_betas=True),
            BatchSizeWarmup(1, 28, num_samples=300)])  # fmt: skip
    assert module.losses == []


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"base_global_batch_size": 0}, "base_global_batch_size = 0; allowed is an int of at"),
        ({"rule": "cubic"}, "rule = 'cubic'; allowed are 'auto', 'none', 'linear', 'sqrt'"),
        ({"warmup_samples": -1}, "warmup_samples = -1; allowed is an int of at least 0"),
        ({"warmup_fraction": 1.5}, r"warmup_fraction = 1\.5; allowed is a number above 0"),
        ({"warmup_fraction": 0.1, "warmup_samples": 5}, r"warmup_samples = 5 and warmup_fraction"),
        ({"global_batch_size": 0}, "global_batch_size = 0; allowed is an int of at least 1"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        LearningRateScaling(**{"base_global_batch_size": 64, **kwargs})

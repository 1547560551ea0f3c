"""Lightning's own callbacks that touch optimizers, checkpoints and statistics, at each level."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelSummary,
)
from lightning.pytorch.callbacks.device_stats_monitor import DeviceStatsMonitor
from lightning.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.model_summary import summarize
from support.levels import INTEGRATION_LEVELS, make_steady_plugin
from support.tolerances import HALF_TRAINING
from support.training import (
    SmallModule,
    ValidatedModule,
    is_equal,
    make_loader,
    make_trainer,
    weights,
)
from torch import nn


def assert_close(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **HALF_TRAINING)


class Finetuned(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.backbone = nn.Sequential(nn.Linear(13, 17), nn.BatchNorm1d(17), nn.Tanh())
        self.head = nn.Linear(17, 3)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        trained = [item for item in self.parameters() if item.requires_grad]
        return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


class Watch(Callback):
    """The optimizer's groups at the end of each epoch, and the dtypes that it keeps."""

    def __init__(self):
        self.rates, self.dtypes, self.backbones = [], [], []

    def on_train_epoch_end(self, trainer, pl_module):
        optimizer = trainer.optimizers[0]
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        masters = list(trainer.precision_plugin.main_params(optimizer))
        self.dtypes.append({item.dtype for item in masters})
        self.backbones.append(pl_module.state_dict()["backbone.0.weight"].clone())


class Thawed(BackboneFinetuning):
    """Thaw again after a resume what is trained: Lightning restores the groups, not this."""

    def on_fit_start(self, trainer, pl_module):
        super().on_fit_start(trainer, pl_module)
        for group in trainer.optimizers[0].param_groups:
            for item in group["params"]:
                item.requires_grad_()


def finetune(folder, precision, max_epochs=4, ckpt_path=None):
    module, watch = Finetuned(), Watch()
    callback = Thawed(
        unfreeze_backbone_at_epoch=2,
        backbone_initial_lr=0.01,
        lambda_func=lambda epoch: 1.5,
        train_bn=False,
    )
    trainer = make_trainer(folder, precision, max_epochs=max_epochs, callbacks=[callback, watch])
    trainer.fit(module, make_loader(), ckpt_path=ckpt_path)
    return module, trainer, watch


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_backbone_finetuning_follows_fp32(tmp_path, level):
    expected, _, plain = finetune(tmp_path, "32-true")
    found, trainer, watch = finetune(tmp_path, make_steady_plugin(level))
    assert trainer.precision_plugin.skipped_steps == 0
    assert watch.rates == plain.rates
    assert [len(rates) for rates in watch.rates] == [1, 1, 2, 2]
    # Frozen for two epochs, then trained in a group that came in during the fit.
    frozen, thawed = watch.backbones[1], watch.backbones[3]
    assert torch.equal(watch.backbones[0], frozen)
    assert not torch.equal(frozen, thawed)
    if not level.startswith("O3"):
        assert watch.dtypes == [{torch.float32}] * 4
        share = (thawed.half().float() == thawed).float().mean()
        assert share < 0.02 or level == "O0"
    assert_close(weights(found), weights(expected))
    assert set(trainer.optimizers[0].state) == set(found.parameters())


@pytest.mark.parametrize("num_epochs", [2, 3])
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_backbone_finetuning_resumes_exactly(tmp_path, level, num_epochs):
    whole, _, _ = finetune(tmp_path, level)
    _, trainer, _ = finetune(tmp_path, level, max_epochs=num_epochs)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    resumed, _, _ = finetune(tmp_path, level, ckpt_path=tmp_path / "c.ckpt")
    assert is_equal(weights(resumed), weights(whole))


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_accumulation_schedule_follows_fp32(tmp_path, level):
    def train(precision):
        module = SmallModule("SGD", lr=0.05)
        schedule = GradientAccumulationScheduler({0: 1, 1: 4, 2: 3})
        trainer = make_trainer(tmp_path, precision, max_epochs=3, callbacks=[schedule])
        trainer.fit(module, make_loader())
        return weights(module), trainer.global_step

    expected, found = train("32-true"), train(level)
    assert found[1] == expected[1] == 8 + 2 + 3
    assert_close(found[0], expected[0])


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_best_checkpoint_loads_everywhere(tmp_path, level):
    module = ValidatedModule("SGD", lr=0.05)
    checkpoint = ModelCheckpoint(
        tmp_path / "kept", monitor="val_loss", save_top_k=2, save_last=True
    )
    trainer = make_trainer(
        tmp_path, level, max_epochs=4, callbacks=[checkpoint], enable_checkpointing=True
    )
    trainer.fit(module, make_loader(), make_loader(21, seed=5))
    best = float(checkpoint.best_model_score)
    assert best == min(map(float, checkpoint.best_k_models.values()))
    assert is_equal(torch.load(checkpoint.last_model_path)["state_dict"], weights(module))
    fresh = ValidatedModule("SGD")
    (scores,) = trainer.validate(
        fresh, make_loader(21, seed=5), ckpt_path=checkpoint.best_model_path, verbose=False
    )
    assert scores["val_loss"] == best


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_early_stopping_stops_at_the_same_epoch(tmp_path, level):
    def train(precision):
        module = ValidatedModule("SGD", lr=0.05)
        # Two epochs of a high rate, then steps too small to improve anything.
        module.configure_optimizers = lambda: schedule(module)
        stopping = EarlyStopping("val_loss", patience=2, min_delta=0.05)
        trainer = make_trainer(tmp_path, precision, max_epochs=20, callbacks=[stopping])
        trainer.fit(module, make_loader(), make_loader(21, seed=5))
        return trainer.current_epoch, stopping.stopped_epoch

    def schedule(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: float(epoch < 2))
        return [optimizer], [rate]

    expected = train("32-true")
    assert expected[0] < 20
    assert train(level) == expected


@pytest.mark.filterwarnings("ignore:Precision O.* is not supported by the model summary")
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_model_summary(tmp_path, level, caplog):
    trainer = make_trainer(
        tmp_path, level, callbacks=[ModelSummary(max_depth=2)], enable_model_summary=True
    )
    module = SmallModule("SGD")
    module.example_input_array = torch.randn(7, 13)
    trainer.fit(module, make_loader())
    assert trainer.precision_plugin.precision == level
    summary = summarize(module, max_depth=2)
    num_parameters = sum(item.numel() for item in module.parameters())
    assert summary.total_parameters == num_parameters
    assert summary.model_size == pytest.approx(num_parameters * 4 / 1e6)
    # The example goes through the model in half where the model is half.
    assert summary.in_sizes[-1] == [7, 17]
    assert summary.out_sizes[-1] == [7, 3]


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_monitors_run(tmp_path, level):
    throughput = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=3)
    trainer = make_trainer(
        tmp_path,
        level,
        callbacks=[throughput, DeviceStatsMonitor(cpu_stats=False)],
        logger=CSVLogger(tmp_path),
        log_every_n_steps=2,
    )
    module = SmallModule("SGD")
    module.flops_per_batch = None
    trainer.fit(module, make_loader())
    logged = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "train/device/samples_per_sec" in logged

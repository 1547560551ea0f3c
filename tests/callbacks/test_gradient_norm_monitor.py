import logging
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.host_reads import HostReads
from support.levels import INTEGRATION_LEVELS, make_steady_plugin
from support.training import SmallGAN, SmallModule, make_loader, make_plugin, make_trainer
from torch.nn import functional as F

from lightning_mp.callbacks import GradientNormMonitor, MasterGradClip
from lightning_mp.callbacks.gradient_norm_monitor import describe_first_norms
from lightning_mp.callbacks.step_norms import optimizer_gradient_norm
from lightning_mp.callbacks.strategy_check import require_whole_gradients

NAME = "lightning_mp/gradient_norm/l2"


class Logged(Callback):
    """Keeps what was logged at each batch, and by which path the last step went."""

    def __init__(self, name=NAME):
        self.name, self.values, self.path = name, [], None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.name in trainer.callback_metrics:
            self.values.append(float(trainer.callback_metrics[self.name]))

    def on_train_end(self, trainer, pl_module):
        if hasattr(trainer.precision_plugin, "engine"):
            engine = trainer.precision_plugin.engine
            self.path = engine.step_of(trainer.optimizers[0]).path


class Looks(Callback):
    """Computes the norm from the gradients in the hook."""

    def __init__(self):
        self.values = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [p.grad.flatten() for p in pl_module.parameters() if p.grad is not None]
        self.values.append(float(torch.cat(gradients).float().norm()))


class Diverging(SmallModule):
    """Its gradients are a thousand times as large in some batches."""

    def __init__(self, bad_batches=(5,)):
        super().__init__("SGD", lr=0.0)
        self.large_batches = bad_batches

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * 1000 if batch_idx in self.large_batches else loss


def fit(tmp_path, precision="32-true", module=None, callbacks=(), **kwargs):
    # At O3 Adam's default eps vanishes.
    module = module or SmallModule(eps=1e-4)
    trainer = make_trainer(tmp_path, precision, callbacks=[*callbacks], **kwargs)
    trainer.fit(module, make_loader())
    return trainer


def norms_of(tmp_path, precision, *others, **kwargs):
    logged = Logged()
    # Behind the monitor in the list: it sees what was logged.
    fit(tmp_path, precision, callbacks=[GradientNormMonitor(), *others, logged], **kwargs)
    return logged


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_norm_is_that_of_true_gradients_and_keeps_the_path(tmp_path, level):
    plugin, with_reader, alone = make_steady_plugin, Looks(), Logged()
    fit(tmp_path, plugin(level), callbacks=[alone])
    logged = norms_of(tmp_path, plugin(level))
    looked = norms_of(tmp_path, plugin(level), with_reader)
    assert logged.path == alone.path
    assert len(logged.values) == 8
    assert logged.values == pytest.approx(with_reader.values, rel=2e-3)
    assert looked.values == pytest.approx(with_reader.values, rel=2e-3)


def test_fused_step_stays_fused(tmp_path):
    assert norms_of(tmp_path, "O2").path == "fast"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_stock_precisions(tmp_path, precision, accumulate):
    looks = Looks()
    logged = norms_of(tmp_path, precision, looks, accumulate_grad_batches=accumulate)
    assert logged.values[-1] == pytest.approx(looks.values[-1], rel=1e-5)
    assert len(looks.values) == math.ceil(8 / accumulate)


@pytest.mark.parametrize("is_fused", [False, True])
def test_loss_scale_of_stock_amp_is_taken_off(tmp_path, is_fused):
    def norms(precision):
        torch.manual_seed(3)
        module = SmallModule("SGD", lr=1e-3, fused=is_fused)
        plugins = []
        if precision == "16-mixed":
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            plugin = L.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler)
            return norms_of(tmp_path, None, module=module, plugins=[plugin]).values
        return norms_of(tmp_path, precision, module=module, plugins=plugins).values

    assert norms("16-mixed") == pytest.approx(norms("32-true"), rel=0.02)


def test_norm_is_the_one_before_clipping(tmp_path):
    expected = norms_of(tmp_path, "O2").values[0]
    for clip in ({"gradient_clip_val": 0.01}, {}):
        others = [] if clip else [MasterGradClip(max_norm=0.01)]
        assert norms_of(tmp_path, "O2", *others, **clip).values[0] == expected


@pytest.mark.parametrize("precision", ["32-true", "O2", "O1-bf16"])
def test_manual_optimisation_with_two_optimizers(tmp_path, precision):
    first, second, looks = Logged(), Logged(f"{NAME}_1"), Looks()
    callbacks = [GradientNormMonitor(), looks, first, second]
    fit(tmp_path, precision, SmallGAN(), callbacks)
    assert len(first.values) == len(second.values) == 8
    assert all(value > 0 for value in first.values + second.values)
    assert first.values != second.values


def test_several_evaluations_of_a_closure_are_one_step(tmp_path):
    monitor = GradientNormMonitor(num_watched_steps=0)
    module = SmallModule("LBFGS", lr=0.1, max_iter=3)
    fit(tmp_path, "32-true", module, [monitor])
    assert monitor.state_dict()["watches"][0]["num_steps"] == 8


@pytest.mark.parametrize("precision", ["32-true", "O2-bf16"])
def test_spike_is_warned_about(tmp_path, precision):
    monitor = GradientNormMonitor()
    with pytest.warns(UserWarning, match="gradient norm of step 5, optimizer 0 = .*; typical was"):
        fit(tmp_path, precision, Diverging(), [monitor])
    assert [spike.step for spike in monitor.spikes[0]] == [5]


def test_spike_may_be_only_printed(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        fit(tmp_path, "32-true", Diverging(), [GradientNormMonitor(on_spike="log")])
    assert any("gradient norm of step 5" in item.message for item in caplog.records)


def test_stop_ends_the_training_one_step_later(tmp_path):
    monitor = GradientNormMonitor(on_spike="stop")
    with pytest.warns(UserWarning, match="gradient norm of step 4"):
        trainer = fit(tmp_path, "32-true", Diverging((4,)), [monitor], max_epochs=3)
    assert trainer.global_step == 6


@pytest.mark.parametrize(("precision", "num_alarms"), [("O2", 0), ("O2-bf16", 1), ("32-true", 1)])
@pytest.mark.filterwarnings("ignore:gradient norm of step")
def test_overflow_is_an_alarm_only_where_no_loss_scale_skips_it(tmp_path, precision, num_alarms):
    module, monitor = SmallModule("SGD", lr=0.0), GradientNormMonitor()
    module.bad_batches = (2,)
    plugin = make_plugin("O2", init_scale=256.0) if precision == "O2" else precision
    fit(tmp_path, plugin, module, [monitor], limit_train_batches=3)
    assert len(monitor.spikes.get(0, [])) == num_alarms


def test_first_steps_are_summed_up_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        fit(tmp_path, "32-true", callbacks=[GradientNormMonitor(num_watched_steps=5)])
    lines = [item.message for item in caplog.records if "gradient norm of the" in item.message]
    assert len(lines) == 1
    assert lines[0].startswith("gradient norm of the first 5 steps: first ")


def test_watch_goes_on_after_a_resume(tmp_path, caplog):
    whole, first, second = (GradientNormMonitor(num_watched_steps=11) for _ in range(3))
    trainer = fit(tmp_path, "O2-bf16", callbacks=[first])
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    torch.load(tmp_path / "c.ckpt", weights_only=True)
    fit(tmp_path, "O2-bf16", callbacks=[whole], max_epochs=2)
    resumed = make_trainer(tmp_path, "O2-bf16", callbacks=[second], max_epochs=2)
    with caplog.at_level(logging.INFO):
        resumed.fit(SmallModule(), make_loader(), ckpt_path=tmp_path / "c.ckpt")
    assert second.state_dict() == whole.state_dict()
    assert any("the first 11 steps" in item.message for item in caplog.records)


def test_clean_steps_read_nothing_but_flags(tmp_path):
    class Quiet(SmallModule):
        def training_step(self, batch, batch_idx):
            return F.mse_loss(self.net(batch[0]), batch[1])

    def num_reads(callbacks):
        with HostReads() as reads:
            fit(tmp_path, "O2", Quiet(), callbacks, max_epochs=2)
        return reads.number

    # A flag of each of 16 steps, ready at once on a CPU; 2 reads where an epoch's metrics are kept.
    assert num_reads([GradientNormMonitor(num_watched_steps=0)]) - num_reads([]) <= 16 + 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_watched_steps": -1}, "num_watched_steps = -1; allowed is an int of at least 0"),
        ({"on_spike": "halt"}, "on_spike = 'halt'; allowed are 'log', 'warn', 'stop'"),
        ({"spike_factor": 0.5}, r"spike_factor = 0\.5"),
        ({"average_steps": 0}, "average_steps = 0"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GradientNormMonitor(**kwargs)


def test_strategy_that_shards_is_refused():
    class Sharding:
        strategy = object()

    with pytest.raises(TypeError, match="strategy = object with GradientNormMonitor; allowed are"):
        require_whole_gradients(Sharding(), asked_by="GradientNormMonitor")


def test_hooks_outside_of_a_fit_are_refused():
    with pytest.raises(RuntimeError, match="GradientNormMonitor has no Trainer yet"):
        GradientNormMonitor().on_before_optimizer_step(None, None, None)


def test_plain_function():
    weight, frozen = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight, frozen], lr=0.1)
    assert optimizer_gradient_norm(optimizer) is None
    weight.grad = torch.tensor([3.0, 0.0, -4.0], dtype=torch.float32)
    assert optimizer_gradient_norm(optimizer) == 5.0


def test_line_of_the_first_steps():
    assert describe_first_norms([0.5]) == (
        "gradient norm of the first 1 steps: first 0.5, median 0.5, largest 0.5 (step 0), last 0.5"
    )

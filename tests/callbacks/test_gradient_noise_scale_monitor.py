import logging
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.host_reads import HostReads
from support.levels import INTEGRATION_LEVELS, make_steady_plugin
from support.training import SmallGAN, SmallModule, make_loader, make_plugin, make_trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.callbacks import GradientNoiseScaleMonitor, MasterGradClip
from lightning_mp.callbacks.gradient_noise_scale_monitor import describe_noise_scale

NAMES = ("scale", "standard_error", "trace", "gradient_square")
STOCK = ["32-true", "bf16-mixed", "16-mixed"]


class Known(L.LightningModule):
    """Its gradient is the mean of the samples, whatever its weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(17, 1, bias=False)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        # At O3 Adam's default eps vanishes.
        return torch.optim.AdamW(self.parameters(), lr=1e-3, eps=1e-4)


def known_loader(batch_size=8, num_samples=1600):
    generator = torch.Generator().manual_seed(5)
    samples = 0.25 + torch.randn(num_samples, 17, generator=generator)
    return DataLoader(TensorDataset(samples), batch_size=batch_size), samples.double()


def run(tmp_path, precision, monitor, *others, accumulate=4, module=None, loader=None, **kwargs):
    if precision == "16-mixed":
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        plugin = L.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler)
        precision, kwargs = None, {**kwargs, "plugins": [plugin]}
    elif isinstance(precision, str) and precision.startswith("O"):
        precision = make_steady_plugin(precision)
    trainer = make_trainer(
        tmp_path,
        precision,
        accumulate_grad_batches=accumulate,
        callbacks=[monitor, *others],
        **kwargs,
    )
    trainer.fit(module or Known(), loader or known_loader()[0])
    return trainer


@pytest.mark.parametrize("precision", [*STOCK, *INTEGRATION_LEVELS])
def test_known_scale(tmp_path, precision):
    monitor = GradientNoiseScaleMonitor(average_steps=10**6)
    trainer = run(tmp_path, precision, monitor)
    samples = known_loader()[1]
    trace = float((samples - samples.mean(0)).square().sum(1).mean())
    exact = trace / float(samples.mean(0).square().sum())
    found = monitor.noise.estimate()
    assert float(found.trace) == pytest.approx(trace, rel=0.05)
    assert abs(float(found.scale) - exact) < 3 * float(found.standard_error) < exact
    logged = {
        name: trainer.callback_metrics[f"lightning_mp/gradient_noise/{name}"] for name in NAMES
    }
    assert float(logged["scale"]) == pytest.approx(float(found.scale), rel=1e-5)


def test_fused_step_stays_fused_and_clipping_does_not_count(tmp_path):
    class Path(Callback):
        def on_train_end(self, trainer, pl_module):
            engine = trainer.precision_plugin.engine
            self.path = engine.step_of(trainer.optimizers[0]).path

    path, plain, clipped = Path(), GradientNoiseScaleMonitor(), GradientNoiseScaleMonitor()
    run(tmp_path, "O2-bf16", plain, path, limit_train_batches=40)
    run(tmp_path, "O2-bf16", clipped, MasterGradClip(max_norm=0.01), limit_train_batches=40)
    assert path.path == "fast"
    assert float(clipped.noise.estimate().trace) == float(plain.noise.estimate().trace)


def test_weights_are_the_same_with_it(tmp_path):
    modules = [SmallModule(), SmallModule()]
    for module, callbacks in zip(modules, [[GradientNoiseScaleMonitor()], []], strict=True):
        trainer = make_trainer(tmp_path, "O2-bf16", accumulate_grad_batches=2, callbacks=callbacks)
        trainer.fit(module, make_loader())
    assert modules[0].losses == modules[1].losses


def test_short_last_window_and_batch_are_weighed_right(tmp_path):
    # 20 batches of 8 and one of 3 in windows of 4: the last has one part and tells nothing.
    monitor = GradientNoiseScaleMonitor()
    run(tmp_path, "32-true", monitor, loader=known_loader(8, 163)[0])
    whole = monitor.noise.state_dict()
    run(tmp_path, "32-true", again := GradientNoiseScaleMonitor(), limit_train_batches=20)
    assert whole["moments"] == pytest.approx(again.noise.state_dict()["moments"], rel=1e-4)


def test_one_of_several_steps_is_measured(tmp_path):
    class Count(Callback):
        num_measured = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            is_step = (batch_idx + 1) % 2 == 0
            self.num_measured += is_step and monitor.noise.state_dict()["moments"] != self.before
            self.before = monitor.noise.state_dict()["moments"]

    monitor, count = GradientNoiseScaleMonitor(every_n_steps=3), Count()
    run(tmp_path, "32-true", monitor, count, accumulate=2, limit_train_batches=20)
    assert count.num_measured == 4  # steps 0, 3, 6 and 9 of 10


def test_overflow_is_left_out(tmp_path):
    class Bad(Known):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * math.inf if batch_idx == 5 else loss

    monitor, plugin = GradientNoiseScaleMonitor(), make_plugin("O2", init_scale=256.0)
    trainer = run(tmp_path, plugin, monitor, module=Bad(), limit_train_batches=16)
    assert trainer.precision_plugin.skipped_steps == 1
    weight = 1 + 0.99 + 0.99**2
    assert monitor.noise.state_dict()["moments"][0] == pytest.approx(weight)


def test_goes_on_after_a_resume(tmp_path):
    first, second, whole = (GradientNoiseScaleMonitor(every_n_steps=3) for _ in range(3))
    options = {"limit_train_batches": 16, "accumulate": 4}
    trainer = run(tmp_path, "O2-bf16", first, **options)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    torch.load(tmp_path / "c.ckpt", weights_only=True)
    torch.manual_seed(0)
    run(tmp_path, "O2-bf16", whole, max_epochs=2, **options)
    trainer = make_trainer(
        tmp_path, "O2-bf16", accumulate_grad_batches=4, limit_train_batches=16, max_epochs=2,
        callbacks=[second],
    )  # fmt: skip
    trainer.fit(Known(), known_loader()[0], ckpt_path=tmp_path / "c.ckpt")
    assert second.state_dict()["num_steps"] == whole.state_dict()["num_steps"] == 8
    expected = whole.noise.state_dict()["moments"]
    assert second.noise.state_dict()["moments"] == pytest.approx(expected, rel=1e-3)


def test_line_at_the_end(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run(tmp_path, "32-true", GradientNoiseScaleMonitor(), limit_train_batches=39)
    (line,) = [item.message for item in caplog.records if "gradient noise scale" in item.message]
    assert "at a global batch size of 32 a step makes" in line
    assert describe_noise_scale(math.inf, math.nan, 7).endswith(
        "a step makes 0 % of the progress of a step with the true gradient"
    )


def test_nothing_is_read_from_the_device(tmp_path):
    class Quiet(SmallModule):
        def training_step(self, batch, batch_idx):
            return F.mse_loss(self.net(batch[0]), batch[1])

    def num_reads(callbacks):
        with HostReads() as reads:
            trainer = make_trainer(tmp_path, "O2", accumulate_grad_batches=2, callbacks=callbacks)
            trainer.fit(Quiet(), make_loader())
        return reads.number

    # 4 metrics at the end of the epoch, twice, and the line at the end of the training.
    assert num_reads([GradientNoiseScaleMonitor()]) - num_reads([]) <= 12


def test_hooks_are_taken_out_after_an_exception(tmp_path):
    class Fails(Known):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    module = Fails()
    with pytest.raises(KeyError, match="mine"):
        run(tmp_path, "32-true", GradientNoiseScaleMonitor(), module=module)
    assert not module.layer.weight._backward_hooks


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Known, {"accumulate": 1}, r"parts of a step = 1 \(accumulate_grad_batches x ranks\)"),
        (SmallGAN, {"accumulate": 1}, "automatic_optimization = False with GradientNoiseScale"),
        (lambda: SmallModule("LBFGS"), {}, "optimizer = LBFGS with GradientNoiseScaleMonitor"),
    ],
)
def test_what_it_cannot_measure_is_refused(tmp_path, module, options, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, "32-true", GradientNoiseScaleMonitor(), module=module(), **options)


def test_batch_without_a_tensor(tmp_path):
    class Texts(Known):
        def training_step(self, batch, batch_idx):
            return self.layer(torch.ones(len(batch), 17) * batch_idx).mean()

    loader = DataLoader(["a", "b", "c", "d"] * 4, batch_size=2)
    with pytest.raises(ValueError, match="batch = list without a tensor"):
        run(tmp_path, "32-true", GradientNoiseScaleMonitor(), module=Texts(), loader=loader)
    monitor = GradientNoiseScaleMonitor(per_device_batch_size=2)
    run(tmp_path, "32-true", monitor, module=Texts(), loader=loader)
    assert float(monitor.noise.estimate().trace) > 0


@pytest.mark.parametrize("name", ["every_n_steps", "average_steps", "per_device_batch_size"])
def test_bad_arguments(name):
    with pytest.raises(ValueError, match=f"{name} = 0; allowed is an int of at least 1"):
        GradientNoiseScaleMonitor(**{name: 0})

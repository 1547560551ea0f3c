"""Whole fits with AmpPrecision on the stock Trainer."""

import warnings

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from support.tolerances import HALF_TRAINING
from support.training import (
    SmallGAN,
    SmallModule,
    ValidatedModule,
    fit,
    is_equal,
    make_loader,
    make_plugin,
    make_trainer,
    weights,
)
from torch import nn
from torch.nn import functional as F

CAST_LEVELS = ["O1", "O1-bf16"]
MASTER_LEVELS = ["O2", "O2-bf16"]
HALF_LEVELS = [*MASTER_LEVELS, "O3", "O3-bf16"]


def test_o0_equals_32_true(tmp_path):
    reference, _ = fit(tmp_path, "32-true", max_epochs=2, gradient_clip_val=0.5)
    module, _ = fit(tmp_path, "O0", max_epochs=2, gradient_clip_val=0.5)
    assert module.losses == reference.losses
    assert is_equal(weights(module), weights(reference))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *HALF_LEVELS])
@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_half_levels_follow_fp32(tmp_path, level, norm, optimizer):
    options = {"optimizer": optimizer, "norm": norm, "lr": 3e-3}
    if level == "O3":
        options |= {"eps": 1e-3} if optimizer == "AdamW" else {"momentum": 0.5}
    reference, _ = fit(tmp_path, "32-true", SmallModule(**options), max_epochs=3)
    module, trainer = fit(tmp_path, level, SmallModule(**options), max_epochs=3)
    assert module.losses == pytest.approx(reference.losses, rel=HALF_TRAINING["rtol"])
    assert trainer.global_step == 24
    assert {item.dtype for item in module.state_dict().values() if item.is_floating_point()} == {
        torch.float32
    }


@pytest.mark.parametrize("clip", [("norm", 0.3), ("value", 0.02)], ids=["norm", "value"])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_clip_and_accumulation_follow_fp32(tmp_path, clip, accumulate, level):
    kwargs = {
        "max_epochs": 2,
        "accumulate_grad_batches": accumulate,
        "gradient_clip_val": clip[1],
        "gradient_clip_algorithm": clip[0],
    }
    reference, _ = fit(tmp_path, "32-true", **kwargs)
    module, trainer = fit(tmp_path, level, **kwargs)
    assert trainer.global_step == 16 // accumulate
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


class NormReader(Callback):
    """Records the gradient norm a user sees before the step."""

    def __init__(self):
        self.model_norms, self.group_norms, self.dtypes = [], [], set()

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [item.grad for item in pl_module.parameters()]
        masters = [item.grad for group in optimizer.param_groups for item in group["params"]]
        self.model_norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        self.group_norms.append(float(torch.cat([g.flatten() for g in masters]).norm()))
        self.dtypes |= {g.dtype for g in gradients + masters}


@pytest.mark.parametrize("level", ["O1-bf16", "O2-bf16"])
@pytest.mark.parametrize("loss_scale", [1.0, 128.0, "dynamic"])
def test_gradients_seen_in_hooks_do_not_depend_on_the_scale(tmp_path, level, loss_scale):
    readers = []
    for scale in (1.0, loss_scale):
        readers.append(NormReader())
        precision = make_plugin(level, loss_scale=scale)
        fit(tmp_path, precision, callbacks=[readers[-1]], gradient_clip_val=0.3)
    assert readers[1].model_norms == readers[0].model_norms
    assert readers[1].group_norms == readers[1].model_norms
    assert readers[1].dtypes == {torch.float32}


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_reader_changes_nothing(tmp_path, level):
    kwargs = {"gradient_clip_val": 0.3, "max_epochs": 2}
    module, _ = fit(tmp_path, level, **kwargs)
    watched, _ = fit(tmp_path, level, **kwargs, callbacks=[NormReader()])
    assert watched.losses == module.losses
    assert is_equal(weights(watched), weights(module))


class RateLog(Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        plugin = trainer.precision_plugin
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.rows.append((rate, plugin.loss_scale, plugin.found_inf.item(), plugin.skipped_steps))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_overflow_skips_halves_and_holds_the_learning_rate(tmp_path, level):
    module = SmallModule()
    module.bad_batches = (0, 3)
    log = RateLog()
    plugin = make_plugin(level, loss_scale="dynamic", init_scale=1024.0, growth_interval=3)
    with warnings.catch_warnings():
        # torch warns of a scheduler that moves before the first step
        warnings.filterwarnings("error", message=r".*lr_scheduler\.step")
        _, trainer = fit(tmp_path, plugin, module, callbacks=[log])
    rate = [1e-2 * 0.97**k for k in (0, 1, 2, 2, 3, 4, 5, 6)]
    assert [row[0] for row in log.rows] == pytest.approx(rate)
    assert [row[1] for row in log.rows] == [512, 512, 512, 256, 256, 256, 512, 512]
    assert [row[2] for row in log.rows] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert log.rows[-1][3] == plugin.skipped_steps == 2
    assert trainer.global_step == 8  # attempts, as Lightning counts
    assert all(item.isfinite().all() for item in module.parameters())


@pytest.mark.parametrize("level", ["O0", "O1-bf16", "O2-bf16", "O3-bf16"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_static_scale_keeps_inf_from_the_weights(tmp_path, level, optimizer):
    module = SmallModule(optimizer)
    module.bad_batches = tuple(range(8))
    before = weights(module)
    _, trainer = fit(tmp_path, make_plugin(level), module)
    assert trainer.precision_plugin.skipped_steps == 8
    if not level.startswith("O3"):
        assert is_equal(weights(module), before)


@pytest.mark.slow
def test_thousands_of_nan_steps(tmp_path):
    module = SmallModule()
    before = weights(module)
    module.training_step = lambda batch, batch_idx: module.net(batch[0]).sum() * float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, trainer = fit(tmp_path, "O2", module, max_epochs=-1, max_steps=3000)
    messages = [
        str(item.message) for item in caught if "in a row were skipped" in str(item.message)
    ]
    assert len(messages) == 1
    assert "'net.0.weight'" in messages[0]
    assert trainer.precision_plugin.loss_scale == 2.0**-10
    assert is_equal(weights(module), before)


@pytest.mark.parametrize("level", [*CAST_LEVELS, *HALF_LEVELS])
def test_validate_test_and_predict_leave_the_weights_alone(tmp_path, level):
    module = ValidatedModule("SGD")
    before = weights(module)
    trainer = make_trainer(tmp_path, level)
    trainer.validate(module, make_loader(), verbose=False)
    trainer.test(module, make_loader(), verbose=False)
    predictions = trainer.predict(module, make_loader())
    assert predictions[0].dtype == torch.float32
    assert is_equal(weights(module), before)
    trainer.fit(module, make_loader(), make_loader())
    reference, _ = fit(tmp_path, level, SmallModule("SGD"))
    assert module.losses == reference.losses
    assert is_equal(weights(module), weights(reference))
    with torch.no_grad():
        module.net[0].weight.mul_(1 + 2**-20)  # no half number
    before = weights(module)
    trainer.validate(module, make_loader(), verbose=False)
    assert is_equal(weights(module), before)


def test_after_fit_everything_is_ordinary_again(tmp_path):
    module, trainer = fit(tmp_path, "O2-bf16")
    assert {item.dtype for item in module.parameters()} == {torch.float32}
    optimizer = trainer.optimizers[0]
    assert set(optimizer.state) == set(module.parameters())
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {
        torch.float32
    }
    for item in module.parameters():
        assert item.grad is None
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
    module.net(torch.randn(5, 13)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_gan_follows_fp32_and_toggling_leaves_no_gradient_behind(tmp_path, level):
    reference, _ = fit(tmp_path, "32-true", SmallGAN(), max_epochs=2)
    module, trainer = fit(tmp_path, level, SmallGAN(), max_epochs=2)
    assert trainer.global_step == 32
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_manual_clip_works_on_unscaled_masters(tmp_path, level):
    reference, module = SmallGAN(), SmallGAN()
    reference.clip = module.clip = 0.05
    fit(tmp_path, "32-true", reference)
    fit(tmp_path, level, module)
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_overflow_of_one_optimizer_skips_that_one_only(tmp_path, level):
    module = SmallGAN()
    module.bad_discriminator_batches = tuple(range(8))
    before = weights(module)
    _, trainer = fit(tmp_path, level, module)
    after = weights(module)
    assert trainer.precision_plugin.skipped_steps == 8
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith("discriminator")


class Finetuned(SmallModule):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = self.net[:3], self.net[3]
        del self.net

    def training_step(self, batch, batch_idx):
        return F.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def test_backbone_finetuning_adds_a_group_later(tmp_path):
    module = Finetuned()
    before = weights(module)
    callback = BackboneFinetuning(unfreeze_backbone_at_epoch=1, backbone_initial_lr=0.1)
    _, trainer = fit(tmp_path, "O2-bf16", module, max_epochs=3, callbacks=[callback])
    assert len(trainer.optimizers[0].param_groups) == 2
    assert not torch.equal(weights(module)["backbone.0.weight"], before["backbone.0.weight"])


def test_small_updates_are_not_lost(tmp_path):
    """Weights in bf16 alone stall where masters move (many reports, among them torchtune 2254)."""
    moved = {}
    for precision in ("32-true", "O2-bf16", "bf16-true"):
        start = weights(SmallModule())
        module, _ = fit(tmp_path, precision, SmallModule("SGD", lr=1e-5), max_epochs=2)
        moved[precision] = sum(
            int((value.float() != start[name]).sum()) for name, value in weights(module).items()
        )
    assert moved["O2-bf16"] >= 0.95 * moved["32-true"]
    assert moved["O2-bf16"] > moved["32-true"] // 2


class LateLosses(SmallModule):
    """Two backwards before the two steps, the second loss overflowing in the first batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(13, 3)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(F.mse_loss(self.net(batch[0]), batch[1]))
        loss = F.mse_loss(self.other(batch[0]), batch[1])
        self.manual_backward(loss * float("inf") if batch_idx == 0 else loss)
        second.step()
        first.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (self.net, self.other)]


@pytest.mark.parametrize("level", ["O1-bf16", "O2-bf16"])
def test_scale_does_not_move_between_two_steps_of_one_backward(tmp_path, level):
    """Stock mixed precision moves it, and doubles the second update (specified in fp32 here)."""
    reference, module = LateLosses(), LateLosses()
    loaders = {"train_dataloaders": make_loader(num_samples=7)}
    make_trainer(tmp_path, "32-true").fit(reference, **loaders)
    make_trainer(tmp_path, make_plugin(level, loss_scale="dynamic")).fit(module, **loaders)
    name = "net.0.weight"
    torch.testing.assert_close(weights(module)[name], weights(reference)[name], **HALF_TRAINING)
    assert torch.equal(weights(module)["other.weight"], weights(LateLosses())["other.weight"])


@pytest.mark.parametrize("level", ["O1-bf16", "O2-bf16"])
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_at_a_static_scale(tmp_path, level, line_search):
    options = {"optimizer": "LBFGS", "lr": 0.1, "line_search_fn": line_search}
    reference, _ = fit(tmp_path, "32-true", SmallModule(**options))
    module, _ = fit(tmp_path, level, SmallModule(**options))
    assert module.losses[-1] < 0.7 * module.losses[0]
    assert len(module.losses) > 8
    assert module.losses[0] == pytest.approx(reference.losses[0], rel=HALF_TRAINING["rtol"])


class NoLoss(SmallModule):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_training_step_may_return_none(tmp_path):
    module, trainer = fit(tmp_path, "O2", NoLoss())
    assert len(module.losses) == 4
    assert trainer.precision_plugin.skipped_steps == 0


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("level", ["O0", *CAST_LEVELS, *MASTER_LEVELS])
def test_a_skipped_micro_batch_keeps_the_gradients_of_the_others(tmp_path, level):
    kwargs = {"accumulate_grad_batches": 2, "max_epochs": 2}
    options = {"optimizer": "SGD", "lr": 0.1}
    reference, _ = fit(tmp_path, "32-true", NoLoss(**options), **kwargs)
    module, _ = fit(tmp_path, level, NoLoss(**options), **kwargs)
    assert not torch.equal(weights(module)["net.3.bias"], weights(NoLoss())["net.3.bias"])
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(reference)[name], **HALF_TRAINING)


def test_master_params(tmp_path):
    class Check(Callback):
        num_checked = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            plugin = trainer.precision_plugin
            for optimizer in (trainer.optimizers[0], pl_module.optimizers()):
                masters = list(plugin.master_params(optimizer))
                for master, item in zip(masters, pl_module.parameters(), strict=True):
                    assert master.dtype == torch.float32
                    assert torch.equal(master.to(item.dtype), item)
                    self.num_checked += 1

    check = Check()
    fit(tmp_path, "O2", callbacks=[check])
    assert check.num_checked == 2 * 8 * 6


@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
@pytest.mark.parametrize("level", [*CAST_LEVELS, *HALF_LEVELS])
def test_a_fit_without_an_optimizer(tmp_path, level):
    class NoOptimizer(SmallModule):
        def configure_optimizers(self):
            return None

    module, _ = fit(tmp_path, level, NoOptimizer())
    assert len(module.losses) == 8
    expected = weights(NoOptimizer())
    if level.startswith("O3"):  # half weights are the truth there as soon as a fit starts
        half = torch.bfloat16 if level.endswith("bf16") else torch.float16
        expected = {name: value.to(half).float() for name, value in expected.items()}
    assert is_equal(weights(module), expected)

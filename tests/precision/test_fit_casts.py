"""What a fit casts and what it leaves: batches, targets, blocks computed again, hooks."""

import pytest
import torch
from support.tolerances import HALF_TRAINING, SAME_MATHS
from support.training import (
    SmallGAN,
    SmallModule,
    ValidatedModule,
    fit,
    make_loader,
    make_plugin,
    make_trainer,
    weights,
)
from torch.nn import functional as F

from lightning_mp.amp.native_library import load_native_library

CAST_LEVELS = ["O1", "O1-bf16"]
MASTER_LEVELS = ["O2", "O2-bf16"]


class UseAfterStep(SmallGAN):
    """Steps and uses the stepped weights in the same training step, as GANs do."""

    def training_step(self, batch, batch_idx):
        optimizer, _ = self.optimizers()
        for _ in range(3):
            optimizer.zero_grad()
            self.manual_backward(self.generator(batch[0][:, :5]).square().mean())
            optimizer.step()
            weight = self.generator[0].weight
            expected = F.linear(batch[0][:, :5].bfloat16(), weight.detach().bfloat16())
            assert torch.equal(F.linear(batch[0][:, :5], weight, torch.zeros(17)), expected)


def test_weights_stepped_in_a_training_step_are_cast_anew(tmp_path):
    fit(tmp_path, "O1-bf16", UseAfterStep())


@pytest.mark.parametrize("cast_inputs", [False, True])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_a_batch_is_cast_only_when_asked(tmp_path, level, cast_inputs):
    is_cast = cast_inputs and level == "O2"

    class Spy(SmallModule):
        def training_step(self, batch, batch_idx):
            assert batch["x"].dtype == (torch.float16 if is_cast else torch.float32)
            assert batch["label"].dtype == torch.int64
            return self.net(batch["x"]).float().pow(2).mean()

    data = [{"x": torch.randn(13), "label": torch.tensor(3)} for _ in range(14)]
    plugin = make_plugin(level, cast_inputs=cast_inputs)
    make_trainer(tmp_path, plugin).fit(Spy(), torch.utils.data.DataLoader(data, batch_size=7))


@pytest.mark.parametrize("level", [*CAST_LEVELS, *MASTER_LEVELS])
def test_targets_beyond_the_range_and_precision_of_half(tmp_path, level):
    class Offset(SmallModule):
        def training_step(self, batch, batch_idx):
            targets = batch[1] + 100_000.0
            loss = F.l1_loss(self.net(batch[0]).float(), targets - 100_000.0)
            self.losses.append(loss.item())
            return loss

    reference, _ = fit(tmp_path, "32-true", Offset())
    module, trainer = fit(tmp_path, level, Offset())
    assert trainer.precision_plugin.skipped_steps == 0
    assert module.losses == pytest.approx(reference.losses, rel=HALF_TRAINING["rtol"])


@pytest.mark.parametrize("level", ["O1", "O1-bf16", "O2", "O2-bf16"])
def test_a_compiled_lightning_module(tmp_path, level):
    class Whole(SmallModule):
        def training_step(self, batch, batch_idx):
            loss = F.mse_loss(self(batch[0]), batch[1])
            self.losses.append(loss.detach())
            return loss

    plain, compiled = Whole(), Whole()
    make_trainer(tmp_path, level).fit(plain, make_loader())
    make_trainer(tmp_path, level).fit(torch.compile(compiled, backend="eager"), make_loader())
    for name, value in weights(compiled).items():
        torch.testing.assert_close(value, weights(plain)[name], **HALF_TRAINING)


@pytest.mark.parametrize("level", ["O1-bf16", "O2-bf16"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_activations_equal_plain_ones(tmp_path, level, use_reentrant):
    class Recomputing(SmallModule):
        def training_step(self, batch, batch_idx):
            noise = torch.zeros(13)  # FP32 on purpose: the forward context brings it to half
            hidden = torch.utils.checkpoint.checkpoint(
                lambda x: self.net[:3](x + noise),
                batch[0].requires_grad_(),
                use_reentrant=use_reentrant,
            )
            return F.mse_loss(self.net[3](hidden), batch[1])

    module, _ = fit(tmp_path, level, Recomputing())
    plain, _ = fit(tmp_path, level, SmallModule())
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(plain)[name], **SAME_MATHS)


class Probability(SmallModule):
    """A loss that O1 refuses in half."""

    def training_step(self, batch, batch_idx):
        return F.binary_cross_entropy(torch.sigmoid(self.net(batch[0])), batch[1].sigmoid())


@pytest.mark.parametrize("level", CAST_LEVELS)
def test_banned_functions_run_in_fp32_when_allowed(tmp_path, level):
    if load_native_library()[0] is None:
        with pytest.raises(NotImplementedError, match="allow_banned"):
            fit(tmp_path, level, Probability())
    _, trainer = fit(tmp_path, make_plugin(level, allow_banned=True), Probability())
    assert trainer.global_step == 8


@pytest.mark.parametrize("level", CAST_LEVELS)
def test_the_step_runs_under_the_casts_and_hooks_do_not(tmp_path, level):
    half = torch.bfloat16 if level.endswith("bf16") else torch.float16

    class Spy(ValidatedModule):
        seen: dict[str, torch.dtype]

        def look(self, place):
            self.seen[place] = F.linear(torch.ones(7, 13), self.net[0].weight).dtype

        def training_step(self, batch, batch_idx):
            self.look("training_step")
            assert self(batch[0]).dtype == torch.float32
            hidden = self.net[0](batch[0])
            hidden.register_hook(lambda gradient: self.look("backward"))
            return F.mse_loss(self.net[1:](hidden), batch[1])

        def validation_step(self, batch, batch_idx):
            self.look("validation_step")

        def on_train_batch_end(self, *_):
            self.look("on_train_batch_end")
            assert self(torch.ones(7, 13)).dtype == torch.float32

    module = Spy()
    module.seen = {}
    make_trainer(tmp_path, level).fit(module, make_loader(), make_loader())
    assert module.seen == {
        "training_step": half,
        "backward": half,
        "validation_step": half,
        "on_train_batch_end": torch.float32,
    }

"""Checkpoints of AmpPrecision: exact resume, exchange with other precisions, plain contents."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from support.training import (
    SmallGAN,
    SmallModule,
    is_equal,
    make_loader,
    make_plugin,
    make_trainer,
    weights,
)

from lightning_mp.precision import AmpPrecision

RESUMABLE = ["O0", "O1", "O1-bf16", "O2", "O2-bf16", "O3-bf16"]


def train(folder, precision, module, *, max_epochs, ckpt_path=None, save=None, **kwargs):
    saving = kwargs.pop("saving", {})
    trainer = make_trainer(folder, precision, max_epochs=max_epochs, **kwargs)
    trainer.fit(module, make_loader(), ckpt_path=ckpt_path)
    if save is not None:
        trainer.save_checkpoint(folder / save, **saving)
    return trainer


def optimizer_values(trainer):
    return [
        {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        for optimizer in trainer.optimizers
        for _, state in sorted(optimizer.state_dict()["state"].items())
    ]


def same_states(first, second):
    return all(
        torch.equal(one[name], other[name])
        for one, other in zip(first, second, strict=True)
        for name in one
    )


@pytest.mark.parametrize("level", RESUMABLE)
@pytest.mark.parametrize("kwargs", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_resume_is_bit_exact(tmp_path, level, kwargs, optimizer):
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    reference = SmallModule(optimizer, **options)
    whole = train(tmp_path, level, reference, max_epochs=3, **kwargs)
    first = SmallModule(optimizer, **options)
    train(tmp_path, level, first, max_epochs=2, save="two.ckpt", **kwargs)
    resumed = SmallModule(optimizer, **options)
    again = train(tmp_path, level, resumed, max_epochs=3, ckpt_path=tmp_path / "two.ckpt", **kwargs)
    assert first.losses + resumed.losses == reference.losses
    assert is_equal(weights(resumed), weights(reference))
    assert same_states(optimizer_values(whole), optimizer_values(again))
    assert whole.precision_plugin.state_dict() == again.precision_plugin.state_dict()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_resume_keeps_a_scale_that_moved(tmp_path, level):
    def plugin():
        return make_plugin(level, init_scale=2.0**12, growth_interval=3)

    def module():
        made = SmallModule()
        made.bad_batches = (2,)
        return made

    reference, first, resumed = module(), module(), module()
    whole = train(tmp_path, plugin(), reference, max_epochs=3)
    train(tmp_path, plugin(), first, max_epochs=1, save="one.ckpt")
    again = train(tmp_path, plugin(), resumed, max_epochs=3, ckpt_path=tmp_path / "one.ckpt")
    assert again.precision_plugin.loss_scale == whole.precision_plugin.loss_scale
    assert again.precision_plugin.skipped_steps == whole.precision_plugin.skipped_steps == 3
    assert is_equal(weights(resumed), weights(reference))


@pytest.mark.parametrize("level", ["O1", "O1-bf16", "O2", "O2-bf16"])
def test_resume_two_optimizers(tmp_path, level):
    reference, resumed = SmallGAN(), SmallGAN()
    whole = train(tmp_path, level, reference, max_epochs=3)
    train(tmp_path, level, SmallGAN(), max_epochs=2, save="two.ckpt")
    again = train(tmp_path, level, resumed, max_epochs=3, ckpt_path=tmp_path / "two.ckpt")
    assert is_equal(weights(resumed), weights(reference))
    assert same_states(optimizer_values(whole), optimizer_values(again))


@pytest.mark.slow
def test_resume_in_a_new_process(tmp_path):
    script = Path(__file__).parent / "resume_script.py"

    def run(*arguments):
        subprocess.run([sys.executable, str(script), str(tmp_path), *arguments], check=True)

    run("whole.pt", "3", "none")
    run("first.pt", "2", "none")
    run("resumed.pt", "3", "first.pt.ckpt")
    whole, resumed = (torch.load(tmp_path / name) for name in ("whole.pt", "resumed.pt"))
    assert whole["losses"][16:] == resumed["losses"]
    assert is_equal(whole["weights"], resumed["weights"])
    assert whole["plugin"] == resumed["plugin"]


@pytest.mark.parametrize("save_weights_only", [False, True])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_checkpoint_is_an_ordinary_fp32_one(tmp_path, save_weights_only, level):
    module = SmallModule("SGD", norm="batch")
    saving = {"weights_only": save_weights_only}
    train(tmp_path, level, module, max_epochs=1, save="c.ckpt", saving=saving)
    checkpoint = torch.load(tmp_path / "c.ckpt", weights_only=True)
    saved = checkpoint["state_dict"]
    assert {value.dtype for value in saved.values()} == {torch.float32, torch.int64}
    assert is_equal(saved, weights(module))
    assert ("AmpPrecision" in checkpoint) == (not save_weights_only)
    SmallModule(norm="batch").load_state_dict(saved)


@pytest.mark.parametrize("stop", [3, 8, 13])
def test_checkpoint_made_during_training_resumes_exactly(tmp_path, stop):
    """ModelCheckpoint saves in the middle of things: between a step and the next backward."""
    reference = SmallModule()
    train(tmp_path, "O2", reference, max_epochs=2, callbacks=[])
    saver = ModelCheckpoint(
        dirpath=tmp_path, filename="{step}", every_n_train_steps=stop, save_top_k=-1
    )
    train(tmp_path, "O2", SmallModule(), max_epochs=2, callbacks=[saver], enable_checkpointing=True)
    saved = torch.load(tmp_path / f"step={stop}.ckpt", weights_only=True)
    partial = SmallModule()
    train(tmp_path, "O2", partial, max_epochs=2, max_steps=stop)
    assert is_equal(saved["state_dict"], weights(partial))
    assert saved["AmpPrecision"]["skipped_steps"] == 0


def test_a_module_that_renames_its_weights_saves_fp32(tmp_path):
    class Renaming(SmallModule):
        def __init__(self):
            super().__init__()
            self.net[3].register_state_dict_post_hook(self.rename)
            self.net[3].register_load_state_dict_pre_hook(self.rename_back)

        @staticmethod
        def rename(module, state_dict, prefix, metadata):
            state_dict[prefix + "w"] = state_dict.pop(prefix + "weight")

        @staticmethod
        def rename_back(module, state_dict, prefix, *_):
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "w")

    reference, resumed = Renaming(), Renaming()
    train(tmp_path, "O2", reference, max_epochs=2)
    train(tmp_path, "O2", Renaming(), max_epochs=1, save="c.ckpt")
    saved = torch.load(tmp_path / "c.ckpt", weights_only=True)["state_dict"]
    assert {value.dtype for value in saved.values()} == {torch.float32}
    train(tmp_path, "O2", resumed, max_epochs=2, ckpt_path=tmp_path / "c.ckpt")
    assert is_equal(weights(resumed), weights(reference))


def test_masters_are_saved_not_rounded_weights(tmp_path):
    module = SmallModule()
    train(tmp_path, "O2-bf16", module, max_epochs=1, save="c.ckpt")
    saved = torch.load(tmp_path / "c.ckpt", weights_only=True)["state_dict"]["net.0.weight"]
    assert not torch.equal(saved, saved.bfloat16().float())


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("32-true", "O1"),
        ("32-true", "O2"),
        ("32-true", "O2-bf16"),
        ("O2", "32-true"),
        ("O2-bf16", "bf16-mixed"),
        ("O1", "bf16-mixed"),
        ("O1", "O2"),
        ("O2", "O1-bf16"),
        ("O2", "O2-bf16"),
        ("O0", "O2"),
    ],
)
@pytest.mark.filterwarnings("ignore:the checkpoint was made with other precision properties")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_checkpoints_are_exchangeable(tmp_path, saved, loaded):
    source, target = SmallModule(), SmallModule()
    train(tmp_path, saved, source, max_epochs=1, save="c.ckpt")
    saved_weights = weights(source)

    class Check(Callback):
        def on_train_start(self, trainer, pl_module):
            self.is_exact = is_equal(weights(pl_module), saved_weights)

    check = Check()
    path = tmp_path / "c.ckpt"
    trainer = train(tmp_path, loaded, target, max_epochs=2, ckpt_path=path, callbacks=[check])
    assert check.is_exact
    assert trainer.global_step == 16
    assert target.losses[0] < source.losses[0]
    dtypes = {value.dtype for state in optimizer_values(trainer) for value in state.values()}
    assert dtypes == {torch.float32}


def test_resume_at_another_level_says_so(tmp_path):
    train(tmp_path, "O2", SmallModule(), max_epochs=1, save="c.ckpt")
    with pytest.warns(UserWarning, match="cast_model_type: float16 -> bfloat16"):
        train(tmp_path, "O2-bf16", SmallModule(), max_epochs=2, ckpt_path=tmp_path / "c.ckpt")


def test_scaler_state_of_stock_mixed_precision_is_taken_over():
    plugin = AmpPrecision("O2")
    stock = {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    plugin.on_load_checkpoint({"MixedPrecision": {**stock, "_growth_tracker": 7}})
    assert plugin.loss_scale == 512.0
    assert plugin.state_dict()["growth_tracker"] == 7


@pytest.mark.parametrize(
    "state", [{"loss_scale": float("nan")}, {"loss_scale": -2.0}, {"hello": 1}]
)
def test_broken_state_is_refused_and_changes_nothing(state):
    plugin = AmpPrecision("O2")
    before = plugin.state_dict()
    with pytest.raises(ValueError, match="loss_scale"):
        plugin.load_state_dict(state)
    assert plugin.state_dict() == before

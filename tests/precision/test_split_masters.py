"""Split masters inside the Trainer: two passes, exact resume, checkpoints that load anywhere."""

import copy

import lightning as L
import pytest
import torch
from jsonargparse import ArgumentParser
from support.passes import STATS, Passes
from support.training import SmallModule, make_loader, make_plugin, make_trainer

from lightning_mp.amp import optimizer_step
from lightning_mp.callbacks import MasterWeightAveraging
from lightning_mp.precision import AmpPrecision


def split_plugin(**options):
    return make_plugin("O2-bf16", master_weights="split", **options)


def fit(tmp_path, module, plugin=None, *, max_epochs=1, ckpt_path=None, **options):
    trainer = make_trainer(
        tmp_path, plugin or split_plugin(), max_epochs=max_epochs, gradient_clip_val=0.3, **options
    )
    trainer.fit(module, make_loader(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_step_is_two_passes_and_close_to_that_of_whole_masters(tmp_path, monkeypatch, optimizer):
    found = []
    step = optimizer_step.OptimizerStep.step

    def counted(self, *args, **kwargs):
        with Passes() as passes:
            step(self, *args, **kwargs)
        found.append(passes)

    monkeypatch.setattr(optimizer_step.OptimizerStep, "step", counted)
    split, whole = SmallModule(optimizer), SmallModule(optimizer)
    fit(tmp_path, split)
    for passes in found[1:]:
        assert passes.kernels[0] == STATS
        assert len(passes.kernels) == 2
        assert passes.others == []
    fit(tmp_path, whole, make_plugin("O2-bf16"))
    for one, other in zip(split.parameters(), whole.parameters(), strict=True):
        assert one.dtype == torch.float32
        # Half weights that are between two others are rounded another way.
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    whole, second = SmallModule(), SmallModule()
    fit(tmp_path, whole, max_epochs=2)
    path = tmp_path / "last.ckpt"
    checkpoints = []

    class Saver(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(path)
                checkpoints.append(copy.deepcopy(pl_module.state_dict()))

    fit(tmp_path, SmallModule(), callbacks=[Saver()])
    saved = torch.load(path, weights_only=True)
    for name, value in saved["state_dict"].items():
        assert value.dtype == torch.float32
        assert torch.equal(value, checkpoints[0][name])
    assert saved["AmpPrecision"]["resolved"]["master_weights"] == "split"
    trainer = fit(tmp_path, second, max_epochs=2, ckpt_path=path)
    assert trainer.global_step == 16
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_checkpoint_loads_anywhere(tmp_path, precision):
    path = tmp_path / "any.ckpt"

    class Saver(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.save_checkpoint(path)

    fit(tmp_path, SmallModule(), callbacks=[Saver()])
    module = SmallModule()
    trainer = fit(tmp_path, module, precision, max_epochs=2, ckpt_path=path)
    assert trainer.global_step == 16
    assert all(item.isfinite().all() for item in module.parameters())


def test_adopt_takes_what_a_callback_writes(tmp_path):
    values = []

    class Writer(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            weight = pl_module.net[0].weight
            weight.data.fill_(0.75)
            trainer.precision_plugin.adopt([weight])
            values.append(pl_module.state_dict()["net.0.weight"].clone())

    fit(tmp_path, SmallModule(), callbacks=[Writer()])
    assert len(values) == 8
    assert all(torch.equal(value, torch.full_like(value, 0.75)) for value in values)


def test_adopt_needs_a_model():
    with pytest.raises(RuntimeError, match="no model was converted yet"):
        split_plugin().adopt()


def test_averages_are_those_of_whole_values(tmp_path):
    # Of Lightning 2.6 on.
    pytest.importorskip("lightning.pytorch.callbacks.weight_averaging")
    results = []
    for plugin in (split_plugin(), make_plugin("O2-bf16")):
        module = SmallModule()
        fit(tmp_path, module, plugin, callbacks=[MasterWeightAveraging(decay=0.5)])
        results.append([item.detach().clone() for item in module.parameters()])
    for one, other in zip(*results, strict=True):
        assert not torch.equal(one, one.bfloat16().float())
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_the_table_tells(tmp_path, caplog):
    with caplog.at_level("INFO"):
        fit(tmp_path, SmallModule())
    assert "float32, as weights and remainders" in caplog.text


@pytest.mark.parametrize(("text", "value"), [("split", "split"), ("true", True), ("null", None)])
def test_it_is_an_option_in_yaml(text, value):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(AmpPrecision, "plugin")
    parsed = parser.parse_args([f"--plugin.master_weights={text}", "--plugin.half_dtype=bf16"])
    assert parsed.plugin.master_weights == value
    parsed = parser.parse_args(["--plugin.fused=false"])
    assert parsed.plugin.fused is False


def test_fp16_has_no_such_halves():
    with pytest.raises(ValueError, match="'split' where the model is cast to float16; it"):
        make_plugin("O2", master_weights="split")

import logging

import pytest
import torch
from support.training import SmallGAN, SmallModule, is_equal, make_loader, make_trainer, weights
from torch.utils.data import DataLoader

from lightning_mp.callbacks import BatchSizeWarmup, GradientNormMonitor, MemoryBreakdown

PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary")
PRECISIONS = ["32-true", "bf16-mixed", "O0", "O1-bf16", "O2", "O2-bf16", "O3-bf16"]


def fit(tmp_path, callback, precision="32-true", module=None, loader=None, others=(), **kwargs):
    trainer = make_trainer(tmp_path, precision, callbacks=[callback, *others], **kwargs)
    trainer.fit(module or SmallModule(), make_loader() if loader is None else loader)
    return trainer


def num_parameters(module=None):
    return sum(item.numel() for item in (module or SmallModule()).parameters())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_at_each_precision(tmp_path, precision, accumulate):
    callback = MemoryBreakdown()
    trainer = fit(tmp_path, callback, precision, accumulate_grad_batches=accumulate)
    (report,) = callback.reports
    count, found = num_parameters(), report.step_peak.by_category
    logged = {
        name: int(trainer.callback_metrics[f"lightning_mp/memory/{name}_bytes"]) for name in PARTS
    }
    assert logged == {name: found.get(name, 0) for name in PARTS}
    assert sum(logged.values()) == trainer.callback_metrics["lightning_mp/memory/peak_bytes"]
    # The norm layer's 34 numbers stay FP32 where the model is half.
    half = {"O2": 2 * count + 2 * 34, "O2-bf16": 2 * count + 2 * 34, "O3-bf16": 2 * count}
    assert found["parameters"] == half.get(precision, 4 * count)
    moments = (4 if precision == "O3-bf16" else 8) * count
    masters = 4 * (count - 34) if precision.startswith("O2") else 0
    # Each of the 6 parameters has a counter of a float.
    assert found["optimizer"] == moments + masters + 6 * 4
    assert report.batch_size == 7


def test_training_is_the_same_with_it(tmp_path):
    for precision in ("32-true", "O2-bf16"):
        measured, plain = SmallModule(), SmallModule()
        others = [GradientNormMonitor()]
        fit(tmp_path, MemoryBreakdown([0, 1, 4]), precision, measured, others=others)
        fit(tmp_path, GradientNormMonitor(), precision, plain)
        assert is_equal(weights(measured), weights(plain))
        assert not any(module._forward_hooks for module in measured.modules())


def test_table_names_modules_and_predictions(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        fit(tmp_path, MemoryBreakdown(predict_per_device_batch_sizes=[103], num_modules=1))
    (table,) = [item.message for item in caplog.records if "Memory of a step" in item.message]
    assert "peak at batch size 7 " in table
    assert table.count("activations of") == 1
    assert "activations of net." in table
    assert "predicted at batch size 103 " in table


def test_growing_batch_gives_a_line(tmp_path):
    def reports(at_steps, **kwargs):
        callback = MemoryBreakdown(at_steps)
        warmup = BatchSizeWarmup(7, 56, num_samples=7 * 63, increment=7)
        fit(tmp_path, callback, loader=make_loader(7 * 200), others=[warmup], **kwargs)
        return callback

    # Up to the size at which the activations outweigh the update.
    early, late = reports([6, 9]), reports([30])
    assert early.reports[0].batch_size != early.reports[1].batch_size
    (last,) = late.reports
    assert last.batch_size == 56
    assert early.predict(56) == pytest.approx(last.step_peak.num_bytes, rel=0.02)


def test_manual_optimisation_with_two_optimizers(tmp_path):
    callback, module = MemoryBreakdown([2]), SmallGAN()
    fit(tmp_path, callback, module=module)
    found = callback.reports[0].step_peak.by_category
    assert found["parameters"] == 4 * num_parameters(module)
    assert found["optimizer"] == 8 * num_parameters(module) + 4 * len(list(module.parameters()))


def test_reports_are_kept_in_the_checkpoint(tmp_path):
    callback, again = MemoryBreakdown(), MemoryBreakdown()
    trainer = fit(tmp_path, callback)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    torch.load(tmp_path / "c.ckpt", weights_only=True)
    trainer = make_trainer(tmp_path, callbacks=[again], max_epochs=2)
    trainer.fit(SmallModule(), make_loader(), ckpt_path=tmp_path / "c.ckpt")
    assert again.reports == callback.reports


def test_nothing_is_left_behind_by_an_exception(tmp_path):
    class Fails(SmallModule):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            raise KeyError("mine")

    module = Fails()
    with pytest.raises(KeyError, match="mine"):
        fit(tmp_path, MemoryBreakdown([0]), module=module)
    assert not any(item._forward_hooks for item in module.modules())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_window_that_does_not_end_is_given_up(tmp_path):
    callback = MemoryBreakdown([1])
    fit(tmp_path, callback, limit_train_batches=3, accumulate_grad_batches=2, max_steps=1)
    assert callback.reports == []
    assert torch._C._len_torch_dispatch_stack() == 0


def test_batch_without_a_tensor(tmp_path):
    class Texts(SmallModule):
        def training_step(self, batch, batch_idx):
            return self.net(torch.ones(len(batch), 13)).square().mean()

    with pytest.raises(ValueError, match="batch = list without a tensor; MemoryBreakdown needs"):
        fit(tmp_path, MemoryBreakdown([0]), module=Texts(), loader=DataLoader(["a", "b"]))
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"at_steps": [3, -1]}, "at_steps = -1; allowed is an int of at least 0"),
        ({"predict_per_device_batch_sizes": [0]}, "predict_per_device_batch_sizes = 0; allowed is"),
        ({"num_modules": -1}, "num_modules = -1; allowed is an int of at least 0"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MemoryBreakdown(**kwargs)

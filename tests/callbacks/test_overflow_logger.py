import logging

import pytest
import torch
from support.training import SmallGAN, SmallModule, make_loader, make_plugin, make_trainer
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_mp.amp.overflow import OverflowRecord
from lightning_mp.callbacks import OverflowLogger
from lightning_mp.callbacks.overflow_logger import format_overflow


def fit(tmp_path, module, callback, precision=None, **kwargs):
    plugin = precision or make_plugin("O2", init_scale=1024.0)
    trainer = make_trainer(tmp_path, plugin, callbacks=[callback], **kwargs)
    trainer.fit(module, make_loader())
    return trainer


def test_tells_step_scales_and_parameters(tmp_path, caplog):
    module, callback = SmallModule(), OverflowLogger(max_names=2)
    module.bad_batches = (0, 3)
    with caplog.at_level(logging.INFO):
        trainer = fit(tmp_path, module, callback)
    lines = [item.message for item in caplog.records if "overflow" in item.message]
    line = (
        "step {}, optimizer 0: overflow, skipped; loss scale {} -> {}; non-finite in net.0.weight, "
        "net.0.bias and 4 more; {} skipped so far"
    )
    assert lines == [line.format(0, 1024, 512, 1), line.format(3, 512, 256, 2)]
    assert callback.num_overflows == {0: 2}
    assert callback.overflows_by_parameter["net.3.bias"] == 2
    assert trainer.callback_metrics["lightning_mp/overflow/skipped_steps"] == 2
    assert trainer.callback_metrics["lightning_mp/overflow/loss_scale"] == 256


def test_tells_the_optimizer(tmp_path):
    module, callback = SmallGAN(), OverflowLogger()
    module.bad_discriminator_batches = (1,)
    fit(tmp_path, module, callback)
    assert callback.num_overflows == {1: 1}
    assert all(name.startswith("discriminator") for name in callback.overflows_by_parameter)


def test_counts_are_kept_in_the_checkpoint(tmp_path):
    module, callback = SmallModule(), OverflowLogger()
    module.bad_batches = (2,)
    trainer = fit(tmp_path, module, callback)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    torch.load(tmp_path / "c.ckpt", weights_only=True)
    again, resumed = SmallModule(), OverflowLogger()
    again.bad_batches = (2,)
    trainer = make_trainer(
        tmp_path, make_plugin("O2", init_scale=1024.0), callbacks=[resumed], max_epochs=2
    )
    trainer.fit(again, make_loader(), ckpt_path=tmp_path / "c.ckpt")
    assert resumed.num_overflows == {0: 2}
    assert resumed.overflows_by_parameter["net.0.weight"] == 2


class CountReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.num_reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_clean_steps_read_nothing_more_from_the_device(tmp_path):
    class Quiet(SmallModule):
        def training_step(self, batch, batch_idx):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def num_reads(callbacks):
        with CountReads() as counter:
            trainer = make_trainer(tmp_path, "O2", callbacks=callbacks)
            trainer.fit(Quiet(), make_loader())
        return counter.num_reads

    # Beyond the flag that the step itself reads (ready at once on a CPU), and what the logger
    # connector reads at the end of the epoch.
    assert num_reads([OverflowLogger()]) - num_reads([]) <= 1


def test_stock_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match="precision = 'bf16-mixed' has no overflow records"):
        fit(tmp_path, SmallModule(), OverflowLogger(), precision="bf16-mixed")


def test_bad_argument():
    with pytest.raises(ValueError, match="max_names = 0"):
        OverflowLogger(max_names=0)


def test_line_of_another_ranks_overflow():
    record = OverflowRecord(7, 1, 2.0**16, 2.0**15, (), 3)
    assert format_overflow(record) == (
        "step 7, optimizer 1: overflow, skipped; loss scale 65536 -> 32768; non-finite in other "
        "ranks; 3 skipped so far"
    )

"""Clean steps of a fit never wait for the device."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support.host_reads import HostReads
from support.training import SmallModule, make_loader, make_plugin, make_trainer
from torch.nn import functional as F

from lightning_mp.amp import host_flag
from lightning_mp.callbacks import OverflowLogger

NUM_BATCHES_ON_THE_WAY = 2


class Device:
    """Stands in for an accelerator: a flag arrives on the host two batches after it was sent."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.num_waits = 0
        self.snapshots: set[int] = set()
        self.kept: list[torch.Tensor] = []

    def start_copy(self, flag):
        snapshot = flag.clone()
        self.kept.append(snapshot)  # keeps the memory, so that an address means one snapshot
        self.snapshots.add(snapshot.data_ptr())
        return snapshot, Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.arrives_at = device.num_batches + NUM_BATCHES_ON_THE_WAY

    def query(self) -> bool:
        return self.device.num_batches >= self.arrives_at

    def synchronize(self) -> None:
        self.device.num_waits += not self.query()


class DeviceReads(HostReads):
    """Counts reads of tensors on the device; what has been copied to the host is free."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_read = func is torch.ops.aten._local_scalar_dense.default
        if is_read and args[0].data_ptr() in self.device.snapshots:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Steady(SmallModule):
    """Reads nothing by itself, and has no scheduler, which would want to know of each step."""

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        return loss * float("inf") if batch_idx in self.bad_batches else loss

    def configure_optimizers(self):
        return super().configure_optimizers()["optimizer"]


class Watch(Callback):
    def __init__(self, device: Device, reads: HostReads) -> None:
        self.device, self.reads = device, reads
        self.counts: list[tuple[int, int]] = []

    def on_train_batch_end(self, *_):
        self.device.num_batches += 1
        self.counts.append((self.reads.number, self.device.num_waits))


def fit(tmp_path, monkeypatch, level, bad_batches=(), callbacks=(), fused=True, **options):
    device = Device()
    monkeypatch.setattr(host_flag, "_start_copy", device.start_copy)
    reads = DeviceReads(device)
    watch = Watch(device, reads)
    if "optimizer_fused" in options:
        options["fused"] = options.pop("optimizer_fused")
    module = Steady(**options)
    module.bad_batches = bad_batches
    trainer = make_trainer(
        tmp_path,
        make_plugin(level, loss_scale="dynamic", init_scale=256.0, growth_interval=3, fused=fused),
        gradient_clip_val=0.3,
        callbacks=[*callbacks, watch],
    )
    with reads:
        trainer.fit(module, make_loader())
    assert trainer.global_step == 8
    return watch.counts, trainer.precision_plugin


@pytest.mark.parametrize("level", ["O1", "O1-bf16", "O2", "O2-bf16"])
@pytest.mark.parametrize("callbacks", [[], [OverflowLogger()]], ids=["bare", "logger"])
def test_clean_steps_read_nothing(tmp_path, monkeypatch, level, callbacks):
    # O2 has a fused step of its own; at O1 it is torch's.
    optimizer = {"optimizer_fused": True} if level.startswith("O1") else {}
    counts, plugin = fit(tmp_path, monkeypatch, level, callbacks=callbacks, **optimizer)
    # The first batch may set up.
    assert counts[-1] == counts[0]
    assert counts[-1][1] == 0
    assert plugin.loss_scale == 1024.0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_counters_count(tmp_path, monkeypatch, level):
    """A step that is not fused asks for its flag; an overflow is looked into."""
    counts, _ = fit(tmp_path, monkeypatch, level, optimizer="SGD", fused=False)
    assert counts[-1][1] == 8
    counts, plugin = fit(
        tmp_path, monkeypatch, "O2", bad_batches=(2,), callbacks=[OverflowLogger()]
    )
    assert counts[-1][0] > counts[1][0]
    assert plugin.skipped_steps == 1

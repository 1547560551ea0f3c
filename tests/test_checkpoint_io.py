import lightning as L
import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from lightning_mp import AmpPrecision
from lightning_mp.checkpoint_io import AtomicCheckpointIO, save_atomically


@pytest.mark.parametrize("name", ["torch.save", "os.fsync", "os.replace"])
def test_an_interrupted_save_leaves_the_old_checkpoint(tmp_path, monkeypatch, name):
    path = tmp_path / "folder" / "c.ckpt"
    save_atomically({"step": 1}, path)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(name, fail)
    with pytest.raises(OSError, match="disk full"):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [item.name for item in path.parent.iterdir()] == ["c.ckpt"]


def test_remote_targets_are_left_to_lightning():
    AtomicCheckpointIO().save_checkpoint({"step": 1}, "memory://c.ckpt")
    loaded = AtomicCheckpointIO().load_checkpoint("memory://c.ckpt")
    assert loaded == {"step": 1}


@pytest.mark.parametrize("form", [{"precision": "O2"}, {"plugins": [AmpPrecision("O2")]}])
def test_an_opt_level_brings_it_along(form):
    trainer = L.Trainer(accelerator="cpu", logger=False, **form)
    assert type(trainer.strategy.checkpoint_io) is AtomicCheckpointIO


def test_a_given_checkpoint_io_stays():
    given = TorchCheckpointIO()
    trainer = L.Trainer(accelerator="cpu", logger=False, precision="O2", plugins=[given])
    assert trainer.strategy.checkpoint_io is given


def test_stock_precisions_keep_lightnings_own():
    trainer = L.Trainer(accelerator="cpu", logger=False, precision="bf16-mixed")
    assert type(trainer.strategy.checkpoint_io) is TorchCheckpointIO

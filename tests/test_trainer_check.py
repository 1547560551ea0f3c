import sys
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import trainer_check
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import other_package_note, require_lightning_trainer

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}


class NotedPrecision(AmpPrecision):
    def __repr__(self):
        return f"NotedPrecision(){other_package_note()}"


class CheckedCallback(L.Callback):
    def setup(self, trainer, pl_module, stage):
        require_lightning_trainer(trainer, asked_by="CheckedCallback")


@pytest.fixture
def standalone():
    return pytest.importorskip("pytorch_lightning")


@pytest.mark.parametrize("trainer", [L.Trainer(**QUIET, accelerator="cpu"), object()])
def test_other_trainers_pass(trainer):
    require_lightning_trainer(trainer)


def test_callback_in_the_wrong_trainer_names_the_right_import(standalone):
    class Model(standalone.LightningModule):
        def training_step(self, batch, batch_idx):
            return None

        def configure_optimizers(self):
            return None

    def make_trainer():
        return standalone.Trainer(
            callbacks=[CheckedCallback()],
            accelerator="cpu",
            max_epochs=1,
            enable_model_summary=False,
            **QUIET,
        )

    if standalone.__version__.startswith("2.4"):
        # This version refuses the callback by itself, before anybody is asked.
        with pytest.raises(ValueError, match="Expected a parent"):
            make_trainer()
        return
    trainer = make_trainer()
    with pytest.raises(
        TypeError,
        match=r"CheckedCallback = pytorch_lightning.*Trainer; allowed: "
        r"lightning\.pytorch\.Trainer; use `import lightning as L` and `L.Trainer`, or set "
        r"LIGHTNING_MP_PACKAGE=pytorch_lightning before",
    ):
        trainer.fit(Model(), DataLoader(TensorDataset(torch.zeros(7, 3))))


def test_plugin_in_the_wrong_trainer_names_the_right_import(standalone):
    with pytest.raises(
        Exception, match=r"Found invalid type.*NotedPrecision.*import lightning as L"
    ):
        standalone.Trainer(plugins=[NotedPrecision()], accelerator="cpu", **QUIET)


def test_no_note_without_the_standalone_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    assert other_package_note() == ""


def test_the_other_way_round(monkeypatch):
    monkeypatch.setattr(trainer_check, "PACKAGE", "pytorch_lightning")
    trainer = L.Trainer(**QUIET, accelerator="cpu")
    with pytest.raises(
        TypeError,
        match=r"CheckedCallback = lightning\.pytorch.*Trainer; allowed: "
        r"pytorch_lightning\.Trainer; "
        r"use `import pytorch_lightning as pl` and `pl\.Trainer`, or set "
        r"LIGHTNING_MP_PACKAGE=lightning before",
    ):
        require_lightning_trainer(trainer, asked_by="CheckedCallback")
    require_lightning_trainer(object())
    assert other_package_note().startswith(" (a plugin of pytorch_lightning, not of lightning.")

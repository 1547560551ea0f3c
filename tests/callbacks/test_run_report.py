import re

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.callbacks import RunReport
from lightning_mp.callbacks.run_report import run_summary
from lightning_mp.precision import AmpPrecision

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
]


class Model(L.LightningModule):
    def __init__(self, bad_batches):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.bad_batches = bad_batches

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log_dict({"b/loss": loss.detach(), "a/constant": 0.123456})
        return loss * float("inf") if batch_idx in self.bad_batches else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(tmp_path, bad_batches=(), **options):
    trainer = L.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Model(bad_batches), DataLoader(TensorDataset(torch.ones(7, 3)), batch_size=2))
    return trainer


def parse_rows(text):
    lines = text.split("Run report\n")[1].splitlines()
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)


def test_stock_precision_with_log_and_checkpoint(tmp_path, capsys):
    checkpoint = ModelCheckpoint()
    fit(
        tmp_path,
        logger=TensorBoardLogger(str(tmp_path), name="log"),
        callbacks=[RunReport(metrics=["a/constant", "no/such"]), checkpoint],
    )
    rows = parse_rows(capsys.readouterr().out)
    assert float(rows.pop("seconds")) >= 0
    assert rows == {
        "a/constant": "0.1235",
        "no/such": "-",
        "precision": "32-true",
        "loss scale": "-",
        "skipped steps": "-",
        "optimizer steps": "4",
        "log": str(tmp_path / "log" / "version_0"),
        "last checkpoint": checkpoint.best_model_path,
    }
    assert rows["last checkpoint"].endswith(".ckpt")


def test_nothing_to_tell(tmp_path, capsys):
    fit(tmp_path, logger=False, enable_checkpointing=False, callbacks=[RunReport()])
    rows = parse_rows(capsys.readouterr().out)
    assert list(rows)[:2] == ["a/constant", "b/loss"]
    assert rows["last checkpoint"] == "-"


def test_scale_and_skips_of_an_opt_level(tmp_path, capsys):
    fit(
        tmp_path,
        bad_batches=(1, 2),
        logger=False,
        enable_checkpointing=False,
        plugins=AmpPrecision("O2", init_scale=1024.0),
        callbacks=[RunReport()],
    )
    rows = parse_rows(capsys.readouterr().out)
    assert (rows["precision"], rows["loss scale"], rows["skipped steps"]) == ("O2", "256", "2")


def test_silent_outside_fit_and_on_other_ranks(tmp_path, capsys, monkeypatch):
    report = RunReport()
    trainer = fit(tmp_path, logger=False, enable_checkpointing=False)
    assert "Run report" not in capsys.readouterr().out
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 1)
    report.on_fit_start(trainer, trainer.lightning_module)
    report.on_fit_end(trainer, trainer.lightning_module)
    assert capsys.readouterr().out == ""


def test_summary_formats_numbers(tmp_path):
    trainer = fit(tmp_path, logger=False, enable_checkpointing=False)
    assert run_summary(trainer, 61.25)["seconds"] == "61.2"

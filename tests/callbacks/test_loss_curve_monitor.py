import logging

import lightning as L
import pytest
import torch
from support.host_reads import HostReads
from support.training import SmallGAN, make_loader, make_trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.callbacks import LossCurveMonitor

PRECISIONS = ["32-true", "bf16-mixed", "O0", "O1-bf16", "O2", "O2-bf16", "O3-bf16"]


class Scripted(L.LightningModule):
    """Its loss is the number that the batch holds, times a weight that stays 1."""

    def __init__(self, returns="tensor"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.automatic_optimization = returns != "nothing"
        self.returns = returns

    def training_step(self, batch, batch_idx):
        loss = (batch[0].mean() * self.weight.float()).sum()
        if self.returns == "nothing":
            self.log("mine", loss.detach())
            (optimizer := self.optimizers()).zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return None
        return {"loss": loss} if self.returns == "dict" else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(tmp_path, monitor, losses, module=None, precision="32-true", **kwargs):
    loader = DataLoader(TensorDataset(torch.tensor(losses)), batch_size=1)
    trainer = make_trainer(tmp_path, precision, callbacks=[monitor], **kwargs)
    trainer.fit(module or Scripted(), loader)
    return trainer


def monitor(**kwargs):
    return LossCurveMonitor(**{"window_steps": 20, "every_n_steps": 5, **kwargs})


RISING = [1.0 + 0.001 * (step % 3) for step in range(20)] + [1.0 + 0.2 * s for s in range(20)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("returns", ["tensor", "dict"])
def test_verdict_and_numbers_are_logged(tmp_path, precision, returns):
    found = monitor()
    trainer = fit(tmp_path, found, [1.0] * 25, Scripted(returns), precision)
    assert found.verdicts == {"plateau": 2}
    assert trainer.callback_metrics["lightning_mp/loss_curve/trend"] == 0
    assert trainer.callback_metrics["lightning_mp/loss_curve/jaggedness"] == 0


def test_verdict_is_told_when_it_changes(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        fit(tmp_path, monitor(), RISING)
    lines = [item.message for item in caplog.records if "loss curve at step" in item.message]
    assert len(lines) == 2
    assert lines[0].startswith("loss curve at step 20 = plateau (noise of a step 0.")
    assert "= divergence (" in lines[1]
    assert lines[1].endswith("go on from a checkpoint before the rise.")


def test_warning(tmp_path):
    with pytest.warns(UserWarning, match="loss curve at step 20 = plateau"):
        fit(tmp_path, monitor(on_verdict="warn"), RISING[:20])


@pytest.mark.filterwarnings("ignore:loss curve at step")
def test_only_divergence_stops(tmp_path):
    trainer = fit(tmp_path, monitor(on_verdict="stop"), RISING, max_epochs=3)
    assert 20 < trainer.global_step <= 40
    assert trainer.global_step % 5 == 0
    assert fit(tmp_path, monitor(on_verdict="stop"), RISING[:20]).global_step == 20


def test_loss_of_a_step_is_the_mean_over_its_micro_batches(tmp_path):
    found = monitor()
    losses = [value for _ in range(20) for value in (0.5, 1.0, 1.5)]
    fit(tmp_path, found, losses, accumulate_grad_batches=3)
    assert found.state_dict()["losses"] == pytest.approx([1.0] * 20)
    assert found.verdicts == {"plateau": 1}


def test_metric_in_manual_optimisation(tmp_path):
    found = monitor(metric="mine")
    fit(tmp_path, found, [1.0] * 20, Scripted("nothing"))
    assert found.verdicts == {"plateau": 1}


def test_nothing_to_judge_is_refused(tmp_path):
    with pytest.raises(ValueError, match="metric = None of LossCurveMonitor, and training_step"):
        fit(tmp_path, monitor(), [1.0] * 20, Scripted("nothing"))
    with pytest.raises(ValueError, match="metric = 'other' of LossCurveMonitor"):
        fit(tmp_path, monitor(metric="other"), [1.0] * 20)
    trainer = make_trainer(tmp_path, callbacks=[monitor()])
    with pytest.raises(ValueError, match="metric = None of LossCurveMonitor"):
        trainer.fit(SmallGAN(), make_loader())


def test_goes_on_after_a_resume(tmp_path):
    first, second, whole = monitor(), monitor(), monitor()
    trainer = fit(tmp_path, first, RISING[:13])
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    torch.load(tmp_path / "c.ckpt", weights_only=True)
    fit(tmp_path, whole, RISING[:13], max_epochs=3)
    resumed = make_trainer(tmp_path, callbacks=[second], max_epochs=3)
    loader = DataLoader(TensorDataset(torch.tensor(RISING[:13])), batch_size=1)
    resumed.fit(Scripted(), loader, ckpt_path=tmp_path / "c.ckpt")
    assert second.state_dict() == whole.state_dict()


def test_nothing_is_read_between_verdicts(tmp_path):
    def num_reads(callbacks):
        with HostReads() as reads:
            trainer = make_trainer(tmp_path, callbacks=callbacks)
            trainer.fit(Scripted(), DataLoader(TensorDataset(torch.ones(24)), batch_size=1))
        return reads.number

    assert num_reads([monitor(every_n_steps=25)]) == num_reads([])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"window_steps": 15}, "window_steps = 15; allowed is an int of at least 16"),
        ({"every_n_steps": 0}, "every_n_steps = 0; allowed is an int of at least 1"),
        ({"on_verdict": "cry"}, "on_verdict = 'cry'; allowed are 'log', 'warn', 'stop'"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        LossCurveMonitor(**kwargs)

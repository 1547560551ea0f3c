"""Lightning's own averages of weights at each level."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from support.levels import INTEGRATION_LEVELS, assert_follows_fp32
from support.tolerances import HALF_TRAINING
from support.training import SmallModule, make_loader, make_trainer, weights


class EpochSchedule(SmallModule):
    """SWA replaces schedulers that step once per epoch."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        }


class ScalerRecord(Callback):
    """The scaler after each batch, and whether the batch had a backward."""

    def __init__(self):
        self.states, self.had_backward = [], []

    def on_train_batch_start(self, *_):
        self.had_backward.append(False)

    def on_before_backward(self, *_):
        self.had_backward[-1] = True

    def on_train_batch_end(self, trainer, *_):
        plugin = trainer.precision_plugin
        state = plugin.state_dict() if hasattr(plugin, "engine") else {}
        self.states.append({name: str(value) for name, value in state.items()})


def train_swa(folder, precision, norm, max_epochs=4, **kwargs):
    module, record = EpochSchedule(norm=norm), ScalerRecord()
    swa = StochasticWeightAveraging(swa_lrs=5e-3, swa_epoch_start=2, annealing_epochs=1)
    trainer = make_trainer(
        folder, precision, max_epochs=max_epochs, callbacks=[swa, record], **kwargs
    )
    trainer.fit(module, make_loader())
    return module, trainer, record


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_stochastic_weight_averaging_follows_fp32(tmp_path, level, norm):
    expected, _, _ = train_swa(tmp_path, "32-true", norm)
    found, trainer, record = train_swa(tmp_path, level, norm)
    # With a batch norm SWA runs the data once more, without a backward.
    assert record.had_backward == [True] * 32 + [False] * 8 * (norm == "batch")
    assert trainer.precision_plugin.skipped_steps == 0
    assert_follows_fp32(found, expected, level)


@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_a_pass_without_backward_leaves_the_scaler_alone(tmp_path, level):
    _, _, record = train_swa(tmp_path, level, "batch")
    assert len(record.states) == 40
    assert record.states[-1] == record.states[32]
    # Only what the last real step left pending has moved.
    assert record.states[-1] == record.states[31]


@pytest.mark.filterwarnings("ignore:.*averages the half weights")
@pytest.mark.parametrize("level", INTEGRATION_LEVELS)
def test_stock_moving_average_follows_fp32(tmp_path, level):
    stock = pytest.importorskip("lightning.pytorch.callbacks.weight_averaging")

    def train(precision):
        module = EpochSchedule(norm="batch")
        callback = stock.EMAWeightAveraging(decay=0.9)
        make_trainer(tmp_path, precision, max_epochs=2, callbacks=[callback]).fit(
            module, make_loader()
        )
        return weights(module)

    expected, found = train("32-true"), train(level)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **HALF_TRAINING)

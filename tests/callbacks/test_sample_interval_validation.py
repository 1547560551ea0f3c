import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from support.training import SmallGAN, ValidatedModule, make_loader, make_trainer
from torch.utils.data import DataLoader, IterableDataset

from lightning_mp.callbacks import BatchSizeWarmup, SampleIntervalValidation
from lightning_mp.callbacks.sample_interval_validation import crosses_multiple

NAME = "lightning_mp/validation/samples_seen"


class Record(Callback):
    """Notes after which training batch each validation ran, and what was logged."""

    def __init__(self):
        self.batches, self.logged = [], []

    def on_validation_start(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.batches.append(trainer.fit_loop.total_batch_idx + 1)

    def on_train_epoch_start(self, trainer, pl_module):
        if NAME in trainer.callback_metrics:
            self.logged.append(float(trainer.callback_metrics[NAME]))


class ValidatedGAN(SmallGAN):
    def validation_step(self, batch, batch_idx):
        pass


def fit(tmp_path, *callbacks, precision="32-true", module=None, loader=None, **kwargs):
    record = Record()
    trainer = make_trainer(tmp_path, precision, callbacks=[*callbacks, record], **kwargs)
    loader = make_loader() if loader is None else loader
    trainer.fit(module or ValidatedModule(), loader, make_loader(14))
    return record, trainer


class Stream(IterableDataset):
    def __iter__(self):
        return iter(make_loader().dataset)


@pytest.mark.parametrize("precision", ["32-true", "O2-bf16"])
@pytest.mark.parametrize(
    ("interval", "batches"),
    [
        (7, list(range(1, 17))),  # after each batch of 7 samples
        (21, [3, 6, 9, 12, 15]),  # across the epochs of 8 batches
        (20, [3, 6, 9, 12, 15]),
        (3, list(range(1, 17))),
        (56, [8, 16]),
        (1000, []),
    ],
)
def test_validations_come_by_samples(tmp_path, precision, interval, batches):
    callback = SampleIntervalValidation(interval)
    record, _ = fit(tmp_path, callback, precision=precision, max_epochs=2)
    assert record.batches == batches
    assert callback.num_samples_seen == 112


@pytest.mark.parametrize(
    "options",
    [
        {"num_sanity_val_steps": 2},
        {"reload_dataloaders_every_n_epochs": 1},
        {"accumulate_grad_batches": 2},
        {"check_val_every_n_epoch": None},
    ],
)
def test_other_settings_of_the_trainer(tmp_path, options):
    record, _ = fit(tmp_path, SampleIntervalValidation(21), max_epochs=2, **options)
    assert record.batches == [3, 6, 9, 12, 15]


def test_short_last_batch_and_manual_optimisation(tmp_path):
    loader = make_loader(num_samples=52)  # the last batch has 3 samples
    callback = SampleIntervalValidation(26)
    record, _ = fit(tmp_path, callback, module=ValidatedGAN(), loader=loader, max_epochs=2)
    assert record.batches == [4, 8, 12, 16]
    assert callback.num_samples_seen == 104


def test_stream_without_length(tmp_path):
    loader = DataLoader(Stream(), batch_size=7)
    record, _ = fit(tmp_path, SampleIntervalValidation(21), loader=loader, max_epochs=2)
    assert record.batches == [3, 6, 9, 12, 15]


def test_growing_batch(tmp_path):
    warmup, callback = (
        BatchSizeWarmup(7, 28, num_samples=42, increment=7),
        SampleIntervalValidation(20),
    )
    record, _ = fit(tmp_path, warmup, callback, max_epochs=2)
    # Batches of 7, 7, 14, 21, 7 (the rest of the epoch) and then 28, 28.
    assert record.batches == [3, 4, 6, 7]
    assert callback.num_samples_seen == 112


def test_samples_are_logged_with_the_validation(tmp_path):
    record, trainer = fit(tmp_path, SampleIntervalValidation(21), max_epochs=2)
    assert record.logged == [42.0]
    assert float(trainer.callback_metrics[NAME]) == 105.0


# Lightning's: a plain loader starts its epoch anew.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("stop", [5, 6, 8, 12])
def test_goes_on_after_a_resume(tmp_path, stop):
    checkpoint = ModelCheckpoint(
        tmp_path,
        every_n_train_steps=stop,
        filename="{step}",
        save_top_k=-1,
        save_on_train_epoch_end=False,
    )
    options = {"max_epochs": 3, "enable_checkpointing": True}
    whole, _ = fit(tmp_path, SampleIntervalValidation(21), checkpoint, **options)
    resumed, callback = Record(), SampleIntervalValidation(21)
    trainer = make_trainer(tmp_path, callbacks=[callback, resumed], max_epochs=3)
    trainer.fit(
        ValidatedModule(), make_loader(), make_loader(14), ckpt_path=tmp_path / f"step={stop}.ckpt"
    )
    assert resumed.batches[-3:] == whole.batches[-3:]


def test_batch_that_does_not_tell_needs_the_argument(tmp_path):
    class Texts(ValidatedModule):
        def training_step(self, batch, batch_idx):
            return self.net(torch.ones(len(batch), 13)).square().mean()

    loader = DataLoader(["a", "b", "c", "d"] * 4, batch_size=2)
    with pytest.raises(ValueError, match="batch = list without a tensor; SampleIntervalValidation"):
        fit(tmp_path, SampleIntervalValidation(8), module=Texts(), loader=loader)
    callback = SampleIntervalValidation(8, global_batch_size=2)
    record, _ = fit(tmp_path, callback, module=Texts(), loader=loader)
    assert record.batches == [4, 8]


@pytest.mark.parametrize(
    "setting",
    [{"val_check_interval": 0.5}, {"val_check_interval": 3}, {"check_val_every_n_epoch": 2}],
)
def test_interval_of_the_trainer_is_refused(tmp_path, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name} = {value} with SampleIntervalValidation"):
        fit(tmp_path, SampleIntervalValidation(8), **setting)


@pytest.mark.parametrize("name", ["every_n_samples", "global_batch_size"])
def test_bad_arguments(name):
    with pytest.raises(ValueError, match=f"{name} = 0; allowed is an int of at least 1"):
        SampleIntervalValidation(**{"every_n_samples": 8, name: 0})


@pytest.mark.parametrize(
    ("before", "after", "crosses"), [(0, 9, False), (0, 10, True), (10, 19, False), (9, 31, True)]
)
def test_plain_function(before, after, crosses):
    assert crosses_multiple(before, after, 10) == crosses

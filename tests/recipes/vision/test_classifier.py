from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.recipes.vision import HeldOutAccuracy, ImageClassifier, ImageDataModule, SmallCNN

# torch 2.13 deprecates what Lightning 2.6 uses; few steps and no workers are intended here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
]


class Recorder(Callback):
    """Keep the learning rate of every step and the number of images of every batch."""

    def __init__(self):
        self.rates = []
        self.num_images = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.num_images.append(len(batch[1]))


def make_trainer(tmp_path, callbacks=(), *, enable_checkpointing=False, **options):
    return L.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=enable_checkpointing,
        **options,
    )


@pytest.fixture
def digits():
    return ImageDataModule(batch_size=103)


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`.*")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_overfits_one_batch(tmp_path, precision):
    L.seed_everything(0)
    images, labels = torch.randn(13, 1, 8, 8), torch.arange(13) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=13)
    model = ImageClassifier(SmallCNN(width=8), learning_rate=1e-2, warmup_steps=3)
    trainer = make_trainer(tmp_path, max_epochs=40, precision=precision)
    trainer.fit(model, loader)
    assert float(trainer.callback_metrics["train/loss"]) < 0.1
    assert float(trainer.callback_metrics["train/accuracy"]) == 1.0


def test_logs_and_predicts(tmp_path, digits):
    model = ImageClassifier(SmallCNN(width=4))
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(model, datamodule=digits)
    names = {"train/loss", "train/accuracy", "val/loss", "val/accuracy"}
    assert set(trainer.callback_metrics) == names
    [tested] = trainer.test(model, datamodule=digits, verbose=False)
    assert set(tested) == {"test/accuracy"}
    batches: Any = trainer.predict(model, datamodule=digits)
    predicted = torch.cat(batches)
    labels = torch.cat([labels for _, labels in digits.test_dataloader()])
    assert predicted.dtype == torch.int64
    assert float((predicted == labels).float().mean()) == pytest.approx(tested["test/accuracy"])


def test_learning_rate_warms_up_by_step_and_falls_by_epoch(tmp_path, digits):
    recorder = Recorder()
    model = ImageClassifier(SmallCNN(width=4), learning_rate=1.0, warmup_steps=4)
    make_trainer(tmp_path, [recorder], max_epochs=2, limit_val_batches=0).fit(
        model, datamodule=digits
    )
    # The rate moves after a step, so the first step of an epoch has the rate of the one before.
    assert recorder.num_images == 2 * [*12 * [103], 57]
    assert recorder.rates == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 11, *[0.5] * 12])


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint.*")
def test_resume_continues_the_schedule(tmp_path, digits):
    def fit(*callbacks, ckpt_path=None, **options):
        recorder = Recorder()
        trainer = make_trainer(
            tmp_path, [recorder, *callbacks], max_epochs=3, limit_val_batches=0, **options
        )
        model = ImageClassifier(SmallCNN(width=4), warmup_steps=20)
        trainer.fit(model, datamodule=digits, ckpt_path=ckpt_path)
        return recorder.rates

    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    whole = fit(saver, enable_checkpointing=True)
    assert len(whole) == 39
    assert fit(ckpt_path=tmp_path / "epoch=0.ckpt") == whole[13:]


def test_checkpoint_loads_in_plain_python(tmp_path, digits):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="last")
    model = ImageClassifier(SmallCNN(width=4), learning_rate=0.123)
    trainer = make_trainer(tmp_path, [saver], max_epochs=1, enable_checkpointing=True)
    trainer.fit(model, datamodule=digits)
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    loaded = ImageClassifier.load_from_checkpoint(tmp_path / "last.ckpt", network=SmallCNN(width=4))
    assert loaded.learning_rate == 0.123
    images = torch.randn(7, 1, 8, 8)
    assert torch.equal(loaded.eval()(images), model.eval()(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate = 0.0; allowed above 0"),
        ({"warmup_steps": -1}, "warmup_steps = -1; allowed 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate = nan; allowed above 0"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0; allowed 0 or more"),
        ({"label_smoothing": 3.0}, "label_smoothing = 3.0; allowed 0 to 1"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageClassifier(SmallCNN(width=4), **arguments)


@pytest.mark.filterwarnings("ignore:.*in eval mode at the start of training.*")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "O2-bf16"])
def test_held_out_accuracy_equals_test_and_changes_nothing(tmp_path, digits, precision):
    weights = []
    for callbacks in ([], [HeldOutAccuracy()]):
        L.seed_everything(0)
        network = SmallCNN(width=4)
        network.classifier.eval()
        model = ImageClassifier(network)
        trainer = make_trainer(tmp_path, callbacks, max_epochs=1, precision=precision)
        trainer.fit(model, datamodule=digits)
        weights.append(model.state_dict())
        assert network.training
        assert not network.classifier.training
        assert ("test/accuracy" in trainer.callback_metrics) == bool(callbacks)
    held_out = float(trainer.callback_metrics["test/accuracy"])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    [tested] = trainer.test(model, datamodule=digits, verbose=False)
    assert held_out == pytest.approx(tested["test/accuracy"])


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`.*")
def test_held_out_accuracy_needs_a_datamodule(tmp_path):
    loader = DataLoader(TensorDataset(torch.randn(7, 1, 8, 8), torch.arange(7)))
    trainer = make_trainer(tmp_path, [HeldOutAccuracy()], max_epochs=1)
    with pytest.raises(ValueError, match="datamodule = None; HeldOutAccuracy"):
        trainer.fit(ImageClassifier(SmallCNN(width=4)), loader)

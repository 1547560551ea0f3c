import pytest
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.strategies.xla import XLAStrategy
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from lightning_mp.callbacks import BatchSizeWarmup
from lightning_mp.callbacks.batch_size_checks import check_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no learning-rate rule"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # Lightning with torch >= 2.10
]


class Endless(IterableDataset):
    def __init__(self, data=None):
        self.data = data

    def __iter__(self):
        return iter(range(10**9))


class OwnBatchSampler(BatchSampler):
    pass


class StatefulLoader(DataLoader):
    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ((20, 4, 100), ValueError, "end_global_batch_size = 4 is smaller"),
            ((4.5, 20, 100), TypeError, r"start_global_batch_size = 4\.5"),
            ((4, 20, 0), ValueError, "num_samples = 0"),
        ],
    )
    def test_bad_arguments(self, arguments, error, match):
        with pytest.raises(error, match=match):
            BatchSizeWarmup(*arguments)

    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"increment": 5}, ValueError, "increment = 5 does not divide .* 16 .*; use 4 or 8"),
            ({"seed": "a"}, TypeError, "seed = 'a'; an integer"),
        ],
    )
    def test_bad_options(self, options, error, match):
        with pytest.raises(error, match=match):
            BatchSizeWarmup(4, 20, 100, **options)

    @pytest.mark.parametrize(
        ("options", "callbacks", "error", "match"),
        [
            ({"accumulate_grad_batches": 3}, [], ValueError, "accumulate_grad_batches = 3 with"),
            (
                {},
                [lambda: GradientAccumulationScheduler({1: 2})],
                ValueError,
                "GradientAccumulationScheduler and",
            ),
        ],
    )
    def test_trainer_settings(self, case, tmp_path, options, callbacks, error, match):
        callbacks = [case.make_warmup(), *(make() for make in callbacks)]
        trainer = case.make_trainer(tmp_path, callbacks, max_epochs=1, **options)
        loader = case.make_loader()
        before = loader.batch_sampler
        with pytest.raises(error, match=match):
            trainer.fit(case.Net(), loader)
        assert loader.batch_sampler is before
        assert "process_dataloader" not in vars(trainer.strategy)

    def test_batch_size_finder(self, case, tmp_path):
        class Data(LightningDataModule):
            batch_size = 3

            def train_dataloader(self):
                return case.make_loader()

        callbacks = [case.make_warmup(), BatchSizeFinder(max_trials=1)]
        trainer = case.make_trainer(tmp_path, callbacks, max_epochs=1)
        with pytest.raises(ValueError, match="BatchSizeFinder and BatchSizeWarmup; only one"):
            trainer.fit(case.Net(), datamodule=Data())

    @pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy, XLAStrategy])
    def test_strategy(self, case, tmp_path, strategy):
        trainer = case.make_trainer(tmp_path, [], max_epochs=1)
        trainer.strategy.__class__ = strategy  # neither can be made on a machine without a GPU
        match = rf"strategy = {strategy.__name__} with BatchSizeWarmup; .*'ddp'"
        with pytest.raises(TypeError, match=match):
            check_trainer(trainer, case.Net(), BatchSizeWarmup)

    @pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter`")
    def test_dataloader_iter(self, case, tmp_path):
        class Pulling(case.Net):
            def training_step(self, dataloader_iter):
                pass

        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)
        with pytest.raises(TypeError, match=r"training_step\(dataloader_iter\).*batch_idx"):
            trainer.fit(Pulling(), case.make_loader())

    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (lambda data: DataLoader(Endless()), TypeError, "Endless with .*map-style"),
            (Endless, TypeError, r"train_dataloader = Endless with .*DataLoader"),
            (lambda data: DataLoader(data, batch_size=None), ValueError, "batch_size = None with"),
            (
                lambda data: DataLoader(
                    data, batch_sampler=OwnBatchSampler(SequentialSampler(data), 4, False)
                ),
                TypeError,
                r"batch_sampler = OwnBatchSampler with .*DataLoader\(sampler=",
            ),
            (
                lambda data: StatefulLoader(data),
                TypeError,
                "StatefulLoader with .*plain DataLoader",
            ),
            (
                lambda data: DataLoader(data, sampler=(index for index in range(3))),
                TypeError,
                "sampler = generator with .*__len__",
            ),
        ],
    )
    def test_loaders(self, case, tmp_path, make, error, match):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)
        with pytest.raises(error, match=match):
            trainer.fit(case.Net(), make(case.IndexedData(13)))
        assert "process_dataloader" not in vars(trainer.strategy)

    @pytest.mark.parametrize(("num_samples", "drop_last"), [(0, False), (3, True)])
    def test_first_epoch_without_batches(self, case, tmp_path, num_samples, drop_last):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)
        match = f"global batch size = 4 in epoch 0; .* {num_samples} samples .*={drop_last}"
        with pytest.raises(ValueError, match=match):
            trainer.fit(
                case.Net(), case.make_loader(num_samples, shuffle=False, drop_last=drop_last)
            )

    def test_epoch_without_batches(self, case, tmp_path):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=30)
        with pytest.raises(ValueError, match=r"global batch size = 16 in epoch .* 13 samples"):
            trainer.fit(case.Net(), case.make_loader(13, drop_last=True))
        assert trainer.global_step == 0

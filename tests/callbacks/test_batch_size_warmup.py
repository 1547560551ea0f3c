from itertools import chain

import lightning
import pytest
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, WeightedRandomSampler

from lightning_mp.callbacks import BatchSizeWarmup
from lightning_mp.callbacks.batch_size_plan import epoch_batch_sizes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no learning-rate rule"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # Lightning with torch >= 2.10
]

WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


class TestEpochs:
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("persistent", [False, True])
    @pytest.mark.parametrize("workers", WORKERS)
    def test_every_sample_once_per_epoch(self, case, tmp_path, workers, persistent, shuffle):
        warmup, model, recorder = case.make_warmup(), case.Net(), case.Recorder()
        trainer = case.make_trainer(tmp_path, [recorder, warmup], max_epochs=3)
        persistent = persistent and workers > 0
        loader = case.make_loader(shuffle=shuffle, workers=workers, persistent_workers=persistent)
        trainer.fit(model, loader)
        assert case.sizes(model) == case.EPOCH_SIZES
        for batches in model.epochs.values():
            assert sorted(chain.from_iterable(batches)) == list(range(103))
        assert recorder.totals == [17, 7, 6]
        assert model.num_steps == trainer.global_step == 30
        assert warmup.num_samples_seen == 309
        is_shuffled = model.epochs[0][0] != [0, 1, 2, 3]
        assert is_shuffled is shuffle
        assert (model.epochs[1][0] != model.epochs[2][0][:12]) is shuffle

    def test_default_increment_is_as_fine_as_possible(self, case, tmp_path):
        warmup, model = BatchSizeWarmup(4, 7, 60), case.Net()
        case.make_trainer(tmp_path, [warmup], max_epochs=1).fit(model, case.make_loader(61))
        assert case.sizes(model) == [[4] * 5 + [5] * 4 + [6] * 3 + [3]]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"limit_train_batches": 5}, [5, 5, 5]),
            ({"limit_train_batches": 7}, [7, 7, 7]),
            ({"limit_train_batches": 0.5}, [8, 6, 4]),
            ({"limit_train_batches": 0.1}, [1, 1, 1]),
            ({"overfit_batches": 2}, [2, 2, 2]),
            ({"fast_dev_run": 3}, [3]),
            ({"max_steps": 20}, [17, 7]),
        ],
    )
    @pytest.mark.filterwarnings("ignore:You requested to overfit")
    def test_limits(self, case, tmp_path, options, expected):
        warmup, model, recorder = case.make_warmup(), case.Net(), case.Recorder()
        trainer = case.make_trainer(tmp_path, [recorder, warmup], **{"max_epochs": 3, **options})
        trainer.fit(model, case.make_loader())
        assert recorder.totals == expected
        num_steps = min(sum(expected), options.get("max_steps", 100))
        assert len(model.batches) == num_steps == trainer.global_step
        seen = 0
        for batch in model.batches[: min(expected[0], 16)]:
            assert len(batch) == warmup.ramp(seen)
            seen += len(batch)
        assert warmup.num_samples_seen == sum(map(len, model.batches))

    def test_drop_last(self, case, tmp_path):
        warmup, model = case.make_warmup(), case.Net()
        trainer = case.make_trainer(tmp_path, [warmup], max_epochs=3)
        trainer.fit(model, case.make_loader(drop_last=True))
        expected, seen = [], 0
        for _ in range(3):
            expected.append(
                epoch_batch_sizes(
                    warmup.ramp, num_epoch_samples=103, num_samples_seen=seen, drop_last=True
                )
            )
            seen += sum(expected[-1])
        assert case.sizes(model) == expected
        assert warmup.num_samples_seen == seen

    @pytest.mark.parametrize(
        ("interval", "validations"),
        [(1.0, [1, 1, 1]), (0.25, [4, 7, 6]), (7, [2, 1, 1]), (17, [1, 1, 1])],
    )
    def test_validation_interval(self, case, tmp_path, interval, validations):
        class Count(Callback):
            counts = [0, 0, 0]

            def on_validation_end(self, trainer, pl_module):
                if not trainer.sanity_checking:
                    self.counts[trainer.current_epoch] += 1

        count = Count()
        count.counts = [0, 0, 0]
        trainer = case.make_trainer(
            tmp_path, [case.make_warmup(), count], max_epochs=3, val_check_interval=interval
        )
        trainer.fit(case.ValidatedNet(), case.make_loader(), case.make_loader(7, shuffle=False))
        assert count.counts == validations

    def test_validation_interval_over_epochs(self, case, tmp_path):
        steps = []

        class Count(Callback):
            def on_validation_end(self, trainer, pl_module):
                steps.append(trainer.global_step)

        trainer = case.make_trainer(
            tmp_path,
            [case.make_warmup(), Count()],
            max_epochs=3,
            val_check_interval=11,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
        )
        trainer.fit(case.ValidatedNet(), case.make_loader(), case.make_loader(7, shuffle=False))
        assert steps == [11, 22]

    def test_validation_loaders_are_left_alone(self, case, tmp_path):
        val_loader = case.make_loader(7, shuffle=False)
        before, lengths = val_loader.batch_sampler, []

        class Look(Callback):
            def on_validation_batch_end(
                self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
            ):
                lengths.append(len(batch[0]))
                assert val_loader.batch_sampler is before

        trainer = case.make_trainer(
            tmp_path, [case.make_warmup(), Look()], max_epochs=1, num_sanity_val_steps=0
        )
        trainer.fit(case.ValidatedNet(), case.make_loader(), val_loader)
        assert lengths == [3, 3, 1]

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("is_same_loader", [False, True])
    def test_reload_every_epoch(self, case, tmp_path, workers, is_same_loader):
        class Data(LightningDataModule):
            def __init__(self):
                super().__init__()
                self.loader = case.make_loader(workers=workers)

            def train_dataloader(self):
                return self.loader if is_same_loader else case.make_loader(workers=workers)

        model, recorder = case.Net(), case.Recorder()
        trainer = case.make_trainer(
            tmp_path,
            [recorder, case.make_warmup()],
            max_epochs=3,
            reload_dataloaders_every_n_epochs=1,
        )
        trainer.fit(model, datamodule=Data())
        assert case.sizes(model) == case.EPOCH_SIZES
        assert recorder.totals == [17, 7, 6]

    def test_skipped_rest_of_epoch_is_not_counted(self, case, tmp_path):
        class Skip(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                seen.append(warmup.num_samples_seen)

        class SkippingNet(case.Net):
            def on_train_batch_start(self, batch, batch_idx):
                return -1 if self.current_epoch == 0 and batch_idx == 5 else None

        seen, warmup, model = [], case.make_warmup(), SkippingNet()
        trainer = case.make_trainer(tmp_path, [warmup, Skip()], max_epochs=2)
        trainer.fit(model, case.make_loader())
        assert seen == [20, 123]
        assert case.sizes(model)[0] == [4] * 5
        assert sum(case.sizes(model)[1]) == 103

    def test_user_loader_class_and_samplers_are_kept(self, case, tmp_path):
        class Loader(DataLoader):
            num_iterations = 0

            def __iter__(self):
                self.num_iterations += 1
                return super().__iter__()

        loader = Loader(
            case.IndexedData(13),
            batch_sampler=BatchSampler(SequentialSampler(range(12, -1, -1)), 5, True),
        )
        model = case.Net()
        case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=2).fit(model, loader)
        assert loader.num_iterations == 2
        assert model.epochs[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    @pytest.mark.parametrize("replacement", [False, True])
    def test_sampler_with_its_own_length(self, case, tmp_path, replacement):
        loader = case.make_loader(
            shuffle=False, sampler=WeightedRandomSampler([1.0] * 103, 57, replacement)
        )
        model = case.Net()
        case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=2).fit(model, loader)
        assert [sum(epoch) for epoch in case.sizes(model)] == [57, 57]

    def test_manual_optimization(self, case, tmp_path):
        class Manual(case.Net):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

        model = Manual()
        model.automatic_optimization = False
        case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=3).fit(
            model, case.make_loader()
        )
        assert case.sizes(model) == case.EPOCH_SIZES

    @pytest.mark.parametrize(
        "bar",
        [
            TQDMProgressBar,
            pytest.param(
                RichProgressBar,
                marks=pytest.mark.skipif(
                    lightning.__version__.startswith("2.4"),
                    reason="Lightning 2.4's bar fails with the rich of today",
                ),
            ),
        ],
    )
    def test_progress_bar_totals(self, case, tmp_path, bar):
        class Totals(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                if isinstance(bar_callback, TQDMProgressBar):
                    total = bar_callback.train_progress_bar.total
                else:
                    task = bar_callback.train_progress_bar_id
                    total = bar_callback.progress.tasks[task].total
                totals.setdefault(trainer.current_epoch, set()).add(total)

        pytest.importorskip("rich")
        bar_callback, totals = bar(), {}
        trainer = case.make_trainer(
            tmp_path,
            [bar_callback, case.make_warmup(), Totals()],
            max_epochs=3,
            enable_progress_bar=True,
        )
        trainer.fit(case.Net(), case.make_loader())
        assert totals == {0: {17}, 1: {7}, 2: {6}}

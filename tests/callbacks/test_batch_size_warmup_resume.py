import warnings
from itertools import chain

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import TQDMProgressBar
from torch.utils.data import RandomSampler, WeightedRandomSampler

from lightning_mp.callbacks.batch_size_plan import epoch_batch_sizes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no learning-rate rule"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # Lightning with torch >= 2.10
]


class TestResume:
    @pytest.fixture
    def whole(self, case, tmp_path):
        """An uninterrupted run with a checkpoint after each of its 30 steps."""
        model, saver = case.Net(), case.SaveAt(tmp_path, "on_train_batch_end", "step={}.ckpt")
        trainer = case.make_trainer(tmp_path, [saver, case.make_warmup()], max_epochs=3)
        trainer.fit(model, case.make_loader())
        return model

    def resume(self, case, tmp_path, name, *, workers=0, planned=False, callbacks=(), **kwargs):
        torch.manual_seed(12345)
        model, warmup = case.Net(planned=planned), case.make_warmup()
        trainer = case.make_trainer(tmp_path, [warmup, *callbacks], **{"max_epochs": 3, **kwargs})
        trainer.fit(model, case.make_loader(workers=workers), ckpt_path=tmp_path / name)
        assert warmup.num_samples_seen == 309
        return model

    @pytest.mark.parametrize("planned", [False, True])
    def test_bit_equal_at_every_step(self, case, tmp_path, whole, planned):
        for stop in range(1, 30):
            model = self.resume(case, tmp_path, f"step={stop}.ckpt", planned=planned)
            assert model.batches == whole.batches[stop:], stop
            assert torch.equal(model.weights, whole.weights), stop

    @pytest.mark.slow
    @pytest.mark.parametrize("planned", [False, True])
    @pytest.mark.parametrize("stop", [3, 16, 17, 18, 23, 24, 29])
    def test_bit_equal_with_workers(self, case, tmp_path, whole, planned, stop):
        model = self.resume(case, tmp_path, f"step={stop}.ckpt", workers=2, planned=planned)
        assert model.batches == whole.batches[stop:]
        assert torch.equal(model.weights, whole.weights)

    @pytest.mark.parametrize(
        "hook",
        [
            "on_train_batch_start",
            "on_before_optimizer_step",
            "on_train_batch_end",
            "on_validation_end",
            "on_train_epoch_end",
        ],
    )
    def test_checkpoints_of_any_hook(self, case, tmp_path, whole, hook):
        def loaders():
            return case.make_loader(), case.make_loader(7, shuffle=False)

        saver, model = case.SaveAt(tmp_path, hook), case.ValidatedNet()
        options = {"max_epochs": 3, "val_check_interval": 0.5, "num_sanity_val_steps": 0}
        trainer = case.make_trainer(tmp_path, [saver, case.make_warmup()], **options)
        trainer.fit(model, *loaders())
        assert model.batches == whole.batches
        for index, num_trained in enumerate(saver.num_trained):
            if hook == "on_before_optimizer_step":
                num_trained -= 1  # its batch is not finished
            resumed, warmup = case.ValidatedNet(), case.make_warmup()
            trainer = case.make_trainer(tmp_path, [warmup], **options)
            trainer.fit(resumed, *loaders(), ckpt_path=tmp_path / f"{index + 1}.ckpt")
            assert resumed.batches == whole.batches[num_trained:], (index, num_trained)
            assert warmup.num_samples_seen == 309

    def test_checkpoint_of_an_exception(self, case, tmp_path, whole):
        class Fail(case.Net):
            def training_step(self, batch, batch_idx):
                if self.num_steps == 20:
                    raise KeyError("power cut")
                return super().training_step(batch, batch_idx)

        saver = case.SaveAt(tmp_path, "on_exception")
        trainer = case.make_trainer(tmp_path, [case.make_warmup(), saver], max_epochs=3)
        with pytest.raises(KeyError, match="power cut"):
            trainer.fit(Fail(), case.make_loader())
        model = self.resume(case, tmp_path, "1.ckpt")
        assert model.batches == whole.batches[19:]
        assert torch.equal(model.weights, whole.weights)

    def test_totals_after_a_resume(self, case, tmp_path, whole):
        recorder = case.Recorder()
        self.resume(case, tmp_path, "step=20.ckpt", callbacks=[recorder])
        # Lightning calls no on_train_epoch_start for an epoch that goes on.
        assert recorder.totals[-1] == 6

    @pytest.mark.parametrize(("stop", "total"), [(5, 17), (17, 7), (20, 7), (24, 6)])
    def test_bar_after_a_resume(self, case, tmp_path, whole, stop, total):
        class Look(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                seen.append((bar.train_progress_bar.total, bar.train_progress_bar.desc))

        seen, bar = [], TQDMProgressBar()
        options = {"callbacks": [bar, Look()], "enable_progress_bar": True}
        self.resume(case, tmp_path, f"step={stop}.ckpt", **options)
        epoch = [17, 7, 6].index(total)
        assert seen[0] == (total, f"Epoch {epoch}: ")

    def test_more_epochs_in_the_same_trainer(self, case, tmp_path, whole):
        warmup, model = case.make_warmup(), case.Net()
        trainer = case.make_trainer(tmp_path, [warmup], max_epochs=1)
        trainer.fit(model, case.make_loader())
        trainer.fit_loop.max_epochs = 3
        trainer.fit(model, case.make_loader())
        assert model.batches == whole.batches
        assert warmup.num_samples_seen == 309

    def test_more_epochs_from_a_checkpoint_after_fit(self, case, tmp_path, whole):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=2)
        trainer.fit(case.Net(), case.make_loader())
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        model = self.resume(case, tmp_path, "end.ckpt")
        assert model.batches == whole.batches[24:]
        assert torch.equal(model.weights, whole.weights)

    def test_stopped_epoch_goes_on_with_the_next(self, case, tmp_path):
        class Stop(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                trainer.should_stop = trainer.global_step == 5

        def fit(callbacks, max_epochs, **kwargs):
            model, warmup = case.Net(), case.make_warmup()
            trainer = case.make_trainer(tmp_path, [warmup, *callbacks], max_epochs=max_epochs)
            trainer.fit(model, case.make_loader(), **kwargs)
            return model, warmup

        _, warmup = fit([Stop(), case.SaveAt(tmp_path, "on_train_epoch_end")], 3)
        assert warmup.num_samples_seen == 20
        model, warmup = fit([], 2, ckpt_path=tmp_path / "1.ckpt")
        expected = epoch_batch_sizes(warmup.ramp, num_epoch_samples=103, num_samples_seen=20)
        assert case.sizes(model) == [expected]
        assert warmup.num_samples_seen == 123

    def test_no_misleading_warning_and_filters_are_put_back(self, case, tmp_path, whole):
        class Look(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                seen.append(list(warnings.filters))

        seen, before = [], list(warnings.filters)
        self.resume(case, tmp_path, "step=20.ckpt", callbacks=[Look()])
        assert seen
        assert all(filters == before for filters in seen)

    def test_checkpoint_holds_plain_numbers(self, tmp_path, whole):
        state = torch.load(tmp_path / "step=20.ckpt", weights_only=True)
        assert state["callbacks"]["BatchSizeWarmup"] == {
            "schedule": {
                "start_global_batch_size": 4,
                "end_global_batch_size": 20,
                "num_samples": 150,
                "increment": 4,
                "world_size": 1,
            },
            "seed": 0,
            "position": {
                "epoch": 1,
                "num_samples_before": 103,
                "num_batches_done": 3,
                "num_samples_seen": 147,
                "num_epoch_samples": 103,
                "is_epoch_done": False,
            },
        }

    def test_order_follows_the_checkpoints_seed(self, case, tmp_path, whole, monkeypatch):
        monkeypatch.setenv("PL_GLOBAL_SEED", "77")
        assert self.resume(case, tmp_path, "step=20.ckpt").batches == whole.batches[20:]

    @pytest.mark.parametrize("seed", [{"seed": 3}, {"environment": "3"}])
    def test_order_follows_the_seeds(self, case, tmp_path, whole, monkeypatch, seed):
        if "environment" in seed:
            monkeypatch.setenv("PL_GLOBAL_SEED", seed.pop("environment"))
        model = case.Net()
        trainer = case.make_trainer(tmp_path, [case.make_warmup(**seed)], max_epochs=1)
        trainer.fit(model, case.make_loader())
        assert model.batches != whole.batches[:17]

    @pytest.mark.parametrize("sampler", ["replacement", "weighted"])
    def test_samplers_with_replacement(self, case, tmp_path, sampler):
        def fit(callbacks, **kwargs):
            torch.manual_seed(len(callbacks))
            if sampler == "weighted":
                order = WeightedRandomSampler([1.0] * 50 + [3.0] * 53, 103)
            else:
                order = RandomSampler(range(103), replacement=True)
            model = case.Net()
            trainer = case.make_trainer(tmp_path, [case.make_warmup(), *callbacks], max_epochs=2)
            trainer.fit(model, case.make_loader(shuffle=False, sampler=order), **kwargs)
            return model

        whole = fit([case.SaveAt(tmp_path, "on_train_batch_end")])
        assert fit([], ckpt_path=tmp_path / "7.ckpt").batches == whole.batches[7:]

    @pytest.mark.parametrize(
        "change", [{"end": 16}, {"num_samples": 151}, {"increment": 8}, {"start": 8}]
    )
    def test_refuses_another_schedule(self, case, tmp_path, whole, change):
        trainer = case.make_trainer(tmp_path, [case.make_warmup(**change)], max_epochs=3)
        match = r"schedule = \{.*\}; the checkpoint was written with \{.*'num_samples': 150"
        with pytest.raises(ValueError, match=match):
            trainer.fit(case.Net(), case.make_loader(), ckpt_path=tmp_path / "step=20.ckpt")

    def test_refuses_other_data_in_mid_epoch(self, case, tmp_path, whole):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=3)
        with pytest.raises(
            ValueError, match=r"samples per epoch = 97; .* middle of an epoch of 103"
        ):
            trainer.fit(case.Net(), case.make_loader(97), ckpt_path=tmp_path / "step=20.ckpt")

    def test_other_data_from_the_end_of_an_epoch(self, case, tmp_path, whole):
        model = case.Net()
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=2)
        trainer.fit(model, case.make_loader(97), ckpt_path=tmp_path / "step=17.ckpt")
        assert sorted(chain.from_iterable(model.batches)) == list(range(97))

    def test_checkpoint_without_the_callback_starts_the_warmup(self, case, tmp_path):
        trainer = case.make_trainer(tmp_path, [], max_epochs=1)
        trainer.fit(case.Net(), case.make_loader())
        trainer.save_checkpoint(tmp_path / "plain.ckpt")
        model, warmup = case.Net(), case.make_warmup()
        trainer = case.make_trainer(tmp_path, [warmup], max_epochs=2)
        trainer.fit(model, case.make_loader(), ckpt_path=tmp_path / "plain.ckpt")
        assert case.sizes(model) == case.EPOCH_SIZES[:1]

import warnings
from itertools import chain

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no learning-rate rule"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # Lightning with torch >= 2.10
]


class TestOwnership:
    @pytest.mark.parametrize("fails", [False, True])
    def test_everything_is_put_back(self, case, tmp_path, fails):
        class Fail(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                assert "process_dataloader" in vars(trainer.strategy)
                if fails:
                    raise KeyError("stop")

        loader = case.make_loader()
        batch_sampler, method = loader.batch_sampler, None
        trainer = case.make_trainer(tmp_path, [case.make_warmup(), Fail()], max_epochs=1)
        method = trainer.strategy.process_dataloader
        if fails:
            with pytest.raises(KeyError, match="stop"):
                trainer.fit(case.Net(), loader)
        else:
            trainer.fit(case.Net(), loader)
        assert "process_dataloader" not in vars(trainer.strategy)
        assert trainer.strategy.process_dataloader == method
        assert loader.batch_sampler is batch_sampler

    def test_another_wrapper_is_put_back(self, case, tmp_path):
        calls = []
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)

        def wrapper(dataloader):
            calls.append(dataloader)
            return dataloader

        trainer.strategy.process_dataloader = wrapper
        loader = case.make_loader()
        trainer.fit(case.Net(), loader)
        assert calls == [loader]
        assert trainer.strategy.process_dataloader is wrapper

    def test_callback_can_be_reused_by_a_fresh_trainer(self, case, tmp_path):
        warmup, models = case.make_warmup(), [case.Net(), case.Net()]
        for model in models:
            case.make_trainer(tmp_path, [warmup], max_epochs=3).fit(model, case.make_loader())
        assert case.sizes(models[0]) == case.sizes(models[1]) == case.EPOCH_SIZES
        assert models[0].batches == models[1].batches

    def test_fit_again_after_an_exception(self, case, tmp_path):
        class FailOnce(Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                if trainer.global_step == 5 and not failed:
                    failed.append(True)
                    raise KeyError("stop")

        failed, model, warmup = [], case.Net(), case.make_warmup()
        trainer = case.make_trainer(tmp_path, [warmup, FailOnce()], max_epochs=1)
        with pytest.raises(KeyError, match="stop"):
            trainer.fit(model, case.make_loader())
        model.epochs.clear()
        trainer.fit(model, case.make_loader())
        assert sorted(chain.from_iterable(model.batches)) == list(range(103))
        assert warmup.num_samples_seen == 123

    def test_other_stages_are_left_alone(self, case, tmp_path):
        trainer = case.make_trainer(tmp_path, [case.make_warmup()])
        trainer.validate(case.ValidatedNet(), case.make_loader(7, shuffle=False), verbose=False)
        assert "process_dataloader" not in vars(trainer.strategy)


class TestReports:
    def test_logged_metrics_come_from_the_plan(self, case, tmp_path):
        class Opaque(case.Net):
            """A batch whose size cannot be inferred."""

            def on_after_batch_transfer(self, batch, dataloader_idx):
                return {"nothing": None, "parts": batch}

            def training_step(self, batch, batch_idx):
                indices.append(batch["parts"][2].tolist())
                return self.layer(batch["parts"][0]).mean()

        indices, recorder = [], case.Recorder()
        trainer = case.make_trainer(tmp_path, [recorder, case.make_warmup()], max_epochs=2)
        trainer.fit(Opaque(), case.make_loader())
        logged = [*recorder.metrics[1:], dict(trainer.callback_metrics)]
        seen = 0
        for metrics, batch in zip(logged, indices, strict=True):
            seen += len(batch)
            assert metrics["lightning_mp/batch_size/global"] == len(batch)
            assert metrics["lightning_mp/batch_size/samples_seen"] == seen
        samples_seen = trainer.callback_metrics["lightning_mp/batch_size/samples_seen"]
        assert samples_seen.dtype == torch.float64

    def test_epoch_means_of_the_user_stay_right(self, case, tmp_path):
        class Weighted(case.Net):
            def training_step(self, batch, batch_idx):
                self.log("mean_index", batch[2].float().mean(), on_epoch=True, on_step=False)
                return super().training_step(batch, batch_idx)

        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)
        trainer.fit(Weighted(), case.make_loader())
        assert trainer.callback_metrics["mean_index"] == pytest.approx(51.0, abs=1e-4)

    def test_overridden_batch_size_is_reported_once(self, case, tmp_path, caplog):
        trainer = case.make_trainer(
            tmp_path, [case.make_warmup()], max_epochs=3, reload_dataloaders_every_n_epochs=1
        )

        class Data(LightningDataModule):
            def train_dataloader(self):
                return case.make_loader()

        with caplog.at_level("INFO"):
            trainer.fit(case.Net(), datamodule=Data())
        found = [text for text in caplog.messages if "overrides DataLoader(batch_size=3)" in text]
        assert len(found) == 1

    @pytest.mark.filterwarnings("default:.*no learning-rate rule")
    @pytest.mark.parametrize("rule", ["none", "scheduler", "callback", "constant size"])
    def test_warns_without_a_learning_rate_rule(self, case, tmp_path, rule):
        class Scaling(Callback):
            scales_learning_rate = True

        def constant(model, optimizer):
            return LambdaLR(optimizer, lambda step: 1.0)

        model = case.Net(constant if rule == "scheduler" else None)
        callbacks = [case.make_warmup(end=4 if rule == "constant size" else 20)]
        callbacks += [Scaling()] if rule == "callback" else []
        trainer = case.make_trainer(tmp_path, callbacks, max_epochs=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(model, case.make_loader())
        found = [w for w in caught if "no learning-rate rule" in str(w.message)]
        assert len(found) == (1 if rule == "none" else 0)
        if found:
            assert "from 4 to 20 samples" in str(found[0].message)
            assert "scales_learning_rate" in str(found[0].message)

    @pytest.mark.parametrize(
        "make",
        [
            lambda total, optimizer: OneCycleLR(optimizer, 0.1, total_steps=total),
            lambda total, optimizer: CosineAnnealingLR(optimizer, total),
        ],
        ids=["OneCycleLR", "CosineAnnealingLR"],
    )
    def test_stale_scheduler_is_named(self, case, tmp_path, make):
        def stale(model, optimizer):
            return make(model.trainer.estimated_stepping_batches, optimizer)

        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=3)
        with pytest.warns(UserWarning, match=r"built for 51 steps.* makes 30: .*planned_steps"):
            trainer.fit(case.Net(stale), case.make_loader())

    def test_planned_scheduler_finishes(self, case, tmp_path):
        def planned(model, optimizer):
            total = model.trainer.callbacks[0].planned_steps(model.trainer)
            return OneCycleLR(optimizer, 0.1, total_steps=total)

        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=3)
        trainer.fit(case.Net(planned), case.make_loader())
        assert trainer.global_step == trainer.lr_scheduler_configs[0].scheduler.total_steps == 30

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"max_epochs": 3}, 30),
            ({"max_epochs": 3, "max_steps": 20}, 20),
            ({"max_epochs": -1, "max_steps": 5}, 5),
            ({"max_epochs": 3, "limit_train_batches": 5}, 15),
            ({"max_epochs": 3, "limit_train_batches": 0.5}, 18),
        ],
    )
    def test_planned_steps(self, case, tmp_path, options, expected):
        model = case.Net(planned=True)
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], **options)
        trainer.fit(model, case.make_loader())
        assert model.planned == trainer.global_step == expected

    def test_planned_steps_of_a_resumed_run_counts_from_the_start(self, case, tmp_path):
        saver = case.SaveAt(tmp_path, "on_train_batch_end")
        trainer = case.make_trainer(tmp_path, [case.make_warmup(), saver], max_epochs=2)
        trainer.fit(case.Net(), case.make_loader())
        model = case.Net(planned=True)
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=3)
        trainer.fit(model, case.make_loader(), ckpt_path=tmp_path / "20.ckpt")
        assert model.planned == 30

    def test_planned_steps_needs_a_fit(self, case, tmp_path):
        warmup = case.make_warmup()
        with pytest.raises(RuntimeError, match=r"outside of fit; .*configure_optimizers"):
            warmup.planned_steps(case.make_trainer(tmp_path, [warmup]))

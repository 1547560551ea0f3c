from itertools import chain

import pytest
from lightning.pytorch.utilities import CombinedLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no learning-rate rule"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),  # Lightning with torch >= 2.10
]

WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


class TestCombinedLoader:
    @pytest.mark.parametrize(
        ("mode", "totals"),
        [("max_size_cycle", [17, 7, 6]), ("max_size", [17, 7, 6]), ("min_size", [11, 6, 4])],
    )
    @pytest.mark.parametrize("workers", WORKERS)
    def test_modes(self, case, tmp_path, mode, totals, workers):
        class Pair(case.Net):
            def training_step(self, batch, batch_idx):
                pairs.append([None if part is None else part[2].tolist() for part in batch])
                return super().training_step(batch[0] or batch[1], batch_idx)

        pairs, recorder, warmup = [], case.Recorder(), case.make_warmup()
        trainer = case.make_trainer(tmp_path, [recorder, warmup], max_epochs=3)
        loaders = [case.make_loader(47, workers=workers), case.make_loader(103, workers=workers)]
        trainer.fit(Pair(), CombinedLoader(loaders, mode))
        assert recorder.totals == totals
        assert len(pairs) == sum(totals)
        assert warmup.num_samples_seen == 3 * (47 if mode == "min_size" else 103)
        leader = 0 if mode == "min_size" else 1
        start = 0
        for total in totals:
            batches = [pair[leader] for pair in pairs[start : start + total]]
            assert sorted(chain.from_iterable(batches)) == list(range([47, 103][leader]))
            start += total
        for short, long in pairs:
            if short is not None and len(short) > 3 and len(long) > 11:
                assert len(short) <= len(long)

    def test_cycled_loader_sees_whole_passes(self, case, tmp_path):
        class Pair(case.Net):
            def training_step(self, batch, batch_idx):
                short.extend(batch["short"][2].tolist())
                return super().training_step(batch["long"], batch_idx)

        short = []
        loaders = {"short": case.make_loader(13), "long": case.make_loader(103)}
        trainer = case.make_trainer(tmp_path, [case.make_warmup()], max_epochs=1)
        trainer.fit(Pair(), loaders)
        assert sorted(short[:13]) == sorted(short[13:26]) == list(range(13))
        assert short[:13] != short[13:26]

    @pytest.mark.parametrize("stop", [3, 13, 17, 20])
    def test_cycled_loader_resumes(self, case, tmp_path, stop):
        class Pair(case.Net):
            def training_step(self, batch, batch_idx):
                self.seen.append([batch["short"][2].tolist(), batch["long"][2].tolist()])
                return super().training_step(batch["long"], batch_idx)

        def fit(callbacks, **kwargs):
            model = Pair()
            model.seen = []
            trainer = case.make_trainer(tmp_path, [case.make_warmup(), *callbacks], max_epochs=2)
            loaders = {"short": case.make_loader(13), "long": case.make_loader(103)}
            trainer.fit(model, loaders, **kwargs)
            return model.seen

        save = case.SaveAt(tmp_path, "on_train_batch_end")
        whole = fit([save])
        rest = fit([], ckpt_path=tmp_path / f"{stop}.ckpt")
        assert rest == whole[stop:]

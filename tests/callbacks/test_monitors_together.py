"""All monitors in one training change nothing of it."""

import pytest
from support.training import (
    ValidatedModule,
    is_equal,
    make_loader,
    make_plugin,
    make_trainer,
    weights,
)

from lightning_mp.callbacks import (
    DataStallMonitor,
    GradientNoiseScaleMonitor,
    GradientNormMonitor,
    LearningRateScaling,
    LossCurveMonitor,
    MemoryBreakdown,
    SampleIntervalValidation,
)


class Quiet(ValidatedModule):
    """Logs nothing by itself."""

    def validation_step(self, batch, batch_idx):
        pass


def monitors():
    return [
        DataStallMonitor(every_n_steps=2, max_wait_fraction=1.0),
        GradientNoiseScaleMonitor(),
        GradientNormMonitor(),
        LearningRateScaling(base_global_batch_size=14),  # as large as the batch in use
        LossCurveMonitor(window_steps=16, every_n_steps=8),
        MemoryBreakdown([0, 3]),
        SampleIntervalValidation(28),
    ]


def fit(tmp_path, precision, callbacks, module_class=ValidatedModule, **kwargs):
    module = module_class()
    trainer = make_trainer(
        tmp_path, precision, callbacks=callbacks, accumulate_grad_batches=2, max_epochs=5, **kwargs
    )
    trainer.fit(module, make_loader(), make_loader(14))
    return module, trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "O1", "O2", "O2-bf16", "split"])
def test_training_is_the_same_with_them(tmp_path, precision):
    def chosen():
        if precision == "split":
            return make_plugin("O2-bf16", master_weights="split")
        return make_plugin(precision, init_scale=256.0) if precision in ("O1", "O2") else precision

    watched, trainer = fit(tmp_path, chosen(), monitors())
    plain, _ = fit(tmp_path, chosen(), [])
    assert is_equal(weights(watched), weights(plain))
    topics = {name.split("/")[1] for name in trainer.callback_metrics if "/" in name}
    assert topics == {
        "data_stall",
        "gradient_noise",
        "gradient_norm",
        "learning_rate",
        "loss_curve",
        "memory",
        "validation",
    }


def test_trainer_that_logs_nothing(tmp_path):
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = dict.fromkeys([*names, "num_sanity_val_steps"])
    _, trainer = fit(tmp_path, "O2-bf16", monitors(), Quiet, barebones=True, **options)
    assert trainer.global_step == 20
    assert trainer.callback_metrics == {}

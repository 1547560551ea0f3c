"""Callbacks handed to the Trainer of the standalone package say which import is right."""

import pytest

from lightning_mp.callbacks import (
    BatchSizeWarmup,
    DataStallMonitor,
    GradientNoiseScaleMonitor,
    GradientNormMonitor,
    LearningRateScaling,
    LossCurveMonitor,
    MasterGradClip,
    MemoryBreakdown,
    OverflowLogger,
    RunReport,
    SampleIntervalValidation,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "callback",
    [
        BatchSizeWarmup(2, 4, 8),
        DataStallMonitor(),
        GradientNoiseScaleMonitor(),
        GradientNormMonitor(),
        LearningRateScaling(8),
        LossCurveMonitor(),
        MasterGradClip(max_norm=1.0),
        MemoryBreakdown(),
        OverflowLogger(),
        RunReport(),
        SampleIntervalValidation(8),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_right_import_is_named(callback):
    import pytorch_lightning

    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    with pytest.raises(TypeError, match="import lightning as L"):
        callback.setup(trainer, None, "fit")

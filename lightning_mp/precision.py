"""The Lightning precision plugin of the opt levels O0, O2 and O3."""

from typing import Literal

from lightning.pytorch.plugins.precision import Precision

__all__ = ["AmpPrecision"]


class AmpPrecision(Precision):
    """Run a Trainer at an opt level.

    Args:
        opt_level: ``"O0"``, ``"O2"`` or ``"O3"`` (letter O).
        half_dtype: Half dtype of O2 and O3.
        keep_batchnorm_fp32: Overrides the level's property.
        keep_norms_fp32: Overrides the level's property.
        master_weights: Overrides the level's property.
        loss_scale: ``"dynamic"``, a fixed scale, or ``None`` for the level's own.
        cast_inputs: Whether floating tensors of a batch are cast to the half dtype.
        init_scale: First scale of the dynamic mode.
        growth_factor: Factor the scale grows by.
        backoff_factor: Factor the scale shrinks by after an overflow.
        growth_interval: Number of good steps in a row before the scale grows.
        min_loss_scale: Floor of the scale, above 0.
        max_loss_scale: Cap of the scale.
        hysteresis: Number of overflows in a row before the scale shrinks.
        skip_scheduler_on_overflow: Whether learning-rate schedulers hold on a skipped step.
    """

    def __init__(
        self,
        opt_level: Literal["O0", "O2", "O3"] = "O2",
        half_dtype: Literal["fp16", "bf16"] = "fp16",
        *,
        keep_batchnorm_fp32: bool | None = None,
        keep_norms_fp32: bool | None = None,
        master_weights: bool | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        cast_inputs: bool = True,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_loss_scale: float = 2.0**-10,
        max_loss_scale: float = 2.0**24,
        hysteresis: int = 1,
        skip_scheduler_on_overflow: bool = True,
    ) -> None:
        self.opt_level = opt_level
        self.half_dtype = half_dtype

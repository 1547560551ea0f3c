"""Average the FP32 master weights of a run, not their half copies."""

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from typing_extensions import override

from lightning_mp.amp.full_precision import full_precision
from lightning_mp.lightning_api import (
    LIGHTNING_VERSION,
    Callback,
    LightningModule,
    Trainer,
    WeightAveraging,
)
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["MasterWeightAveraging"]

_FUNCTIONS = ("avg_fn", "multi_avg_fn")


class MasterWeightAveraging(WeightAveraging):
    """Lightning's WeightAveraging for opt levels: it averages and restores FP32 masters.

    The average is taken of the FP32 values, validation runs with the average in the half weights
    while the masters wait unchanged, and the model ends training with the average in full. A
    checkpoint holds the FP32 average in ``state_dict`` and what is needed to resume exactly; one
    saved with weights only holds the current weights, as with WeightAveraging. At O3,
    which has no masters, the half weights are averaged in FP32 and the average is not rounded
    either. With a precision that is not an opt level it is WeightAveraging. Ranks do not
    communicate: all of them average the same values. Outside ``fit`` the callback does nothing, so
    a checkpoint is tested with the average that it holds.

    When to average is decided by ``should_update``, as in WeightAveraging: after each step unless
    it is overridden.

    Args:
        device: Device of the average; ``None`` for where the model is when ``fit`` begins.
        use_buffers: Whether buffers are averaged as well as parameters.
        decay: Weight of the old average in an exponential moving average, from 0 up to 1.
            ``None`` weighs all updates equally, or leaves it to ``avg_fn`` or ``multi_avg_fn``.
        **kwargs: ``avg_fn`` or ``multi_avg_fn`` of ``torch.optim.swa_utils.AveragedModel``.

    Attributes:
        averages_masters: Tells the precision plugin that nothing is rounded here.

    Raises:
        RuntimeError: Lightning is older than 2.6, where WeightAveraging came in.
        ValueError: ``decay`` is out of its range, or an averaging function is given as well.
        TypeError: An argument of another name; also, when training starts, the Trainer belongs
            to the Lightning package that is not in use.

    Example:
        >>> import lightning as L
        >>> average = MasterWeightAveraging(decay=0.99)  # doctest: +SKIP
        >>> L.Trainer(precision="O2-bf16", callbacks=[average])  # doctest: +SKIP
    """

    averages_masters = True

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        *,
        decay: float | None = None,
        **kwargs: Any,
    ) -> None:
        # One implementation: a copy for older versions would have to follow Lightning's.
        if WeightAveraging is Callback:
            raise RuntimeError(
                f"Lightning = {LIGHTNING_VERSION}; MasterWeightAveraging builds on WeightAveraging "
                "of Lightning 2.6 or later; upgrade Lightning, or use StochasticWeightAveraging"
            )
        unknown = sorted(set(kwargs) - set(_FUNCTIONS))
        if unknown:
            raise TypeError(
                f"{unknown[0]} = {kwargs[unknown[0]]!r}; allowed: device, use_buffers, decay, "
                f"{', '.join(_FUNCTIONS)}; correct the name, or leave it out"
            )
        if decay is not None:
            kwargs["multi_avg_fn"] = _ema_function(decay, kwargs)
        super().__init__(device, use_buffers, **kwargs)
        # The average in full, while half weights without masters hold it rounded.
        self._kept: list[Tensor] = []
        self._is_rounded = False

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="MasterWeightAveraging")
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            self._kept = []
            self._average_model.__class__ = _MasterAveragedModel
            # Those of an earlier fit, perhaps of another Trainer, say nothing about this one.
            self._latest_update_step = trainer.global_step
            self._latest_update_epoch = trainer.current_epoch - 1

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_rounded = _is_rounding(pl_module)
        with _full_precision(pl_module):
            super().on_train_end(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if self._is_rounded:
            # The model is FP32 again by now.
            self._copy_average_to_current(pl_module)
            self._is_rounded = False

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if _is_fitting(trainer):
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not _is_fitting(trainer):
            return
        if _is_rounding(pl_module):
            self._kept = [item.detach().clone() for item in self._average_values()]
        with _full_precision(pl_module):
            super().on_validation_epoch_start(trainer, pl_module)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not _is_fitting(trainer):
            return
        with _full_precision(pl_module):
            super().on_validation_epoch_end(trainer, pl_module)
        for value, kept in zip(self._average_values(), self._kept, strict=False):
            value.data.copy_(kept)
        self._kept = []

    def _average_values(self) -> list[Tensor]:
        if self._average_model is None:
            return []
        model = self._average_model.module
        return list(chain(model.parameters(), model.buffers()))


class _MasterAveragedModel(AveragedModel):
    @override
    def update_parameters(self, model: nn.Module) -> None:
        with _full_precision(model):
            super().update_parameters(model)


def _is_fitting(trainer: Trainer) -> bool:
    # The average of an earlier fit is still there in a later validation, perhaps of another model.
    return trainer.state.fn == "fit"


def _full_precision(module: Any) -> AbstractContextManager[None]:
    plugin = module.trainer.precision_plugin
    if not isinstance(plugin, AmpPrecision) or not plugin.engine.is_converted:
        return nullcontext()
    return full_precision(plugin.engine.masters)


def _is_rounding(module: LightningModule) -> bool:
    plugin = module.trainer.precision_plugin
    if not isinstance(plugin, AmpPrecision) or not plugin.engine.is_converted:
        return False
    masters = plugin.engine.masters
    return bool(masters.half_parameters) and not masters.has_masters


def _ema_function(decay: float, kwargs: dict[str, Any]) -> Any:
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
        raise ValueError(f"decay = {decay!r}; allowed is a number from 0 to 1; 0.999 is usual")
    given = [name for name in _FUNCTIONS if kwargs.get(name) is not None]
    if given:
        raise ValueError(
            f"decay = {decay} and {given[0]} = {kwargs[given[0]]!r}; allowed: one way to average; "
            "leave out one of the two"
        )
    return get_ema_multi_avg_fn(decay)

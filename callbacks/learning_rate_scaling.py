"""Let the learning rate follow the global batch size, and warm it up."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_choice, require_count, require_number
from lightning_mp.callbacks.batch_size_source import (
    BatchSizeSource,
    find_batch_size_source,
    loader_batch_size,
)
from lightning_mp.callbacks.learning_rate_rules import (
    check_betas,
    learning_rate_factor,
    resolve_rule,
    scaled_step,
)
from lightning_mp.callbacks.optimizer_step_hook import OptimizerStepHook
from lightning_mp.lightning_api import Callback, LightningModule, Trainer
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["LearningRateScaling"]


class LearningRateScaling(Callback):
    """Scale learning rates that were tuned for one global batch size to the one in use.

    The rate is scaled only while an optimizer steps: learning-rate schedulers, checkpoints and
    LearningRateMonitor see the unscaled one. The batch size comes from BatchSizeWarmup (or another
    callback that schedules it), else it is batch size x ranks x accumulate_grad_batches.

    Logged at each step, with ``_1`` and so on for further optimizers:
    ``lightning_mp/learning_rate/factor`` and ``lightning_mp/learning_rate/scaled``, the rate of the
    first parameter group in use.

    Args:
        base_global_batch_size: The size that the learning rates were tuned for, in samples over
            all ranks.
        rule: ``"linear"``, ``"sqrt"``, ``"none"`` (warm-up only), or ``"auto"``: linear for SGD,
            square root for Adam and its kind.
        scale_betas: Whether Adam's betas and eps follow the batch size too:
            ``1 - ratio * (1 - beta)`` and ``eps / sqrt(ratio)``.
        warmup_samples: Samples over all ranks during which the rate rises from 0; 0 for none.
        warmup_fraction: The same as a fraction of the planned optimizer steps; 0.02 to 0.05 is
            usual. Exclusive with ``warmup_samples``.
        global_batch_size: The size in use, in samples over all ranks, where the loader cannot tell.

    Raises:
        ValueError: An argument is out of its range, or (when training starts) the batch size or
            the number of steps is not known, or the betas cannot be scaled that far.

    Example:
        >>> scaling = LearningRateScaling(base_global_batch_size=64, warmup_fraction=0.03)
        >>> scaling.rule
        'auto'
    """

    scales_learning_rate = True

    def __init__(
        self,
        base_global_batch_size: int,
        rule: Literal["auto", "none", "linear", "sqrt"] = "auto",
        *,
        scale_betas: bool = False,
        warmup_samples: int = 0,
        warmup_fraction: float = 0.0,
        global_batch_size: int | None = None,
    ) -> None:
        require_count("base_global_batch_size", base_global_batch_size)
        require_choice("rule", rule, ("auto", "none", "linear", "sqrt"))
        require_count("warmup_samples", warmup_samples, minimum=0)
        if warmup_fraction:
            require_number("warmup_fraction", warmup_fraction, above=0, at_most=1)
        if warmup_samples and warmup_fraction:
            raise ValueError(
                f"warmup_samples = {warmup_samples} and warmup_fraction = {warmup_fraction}; one "
                "of the two is allowed; leave one out"
            )
        if global_batch_size is not None:
            require_count("global_batch_size", global_batch_size)
        self.base_global_batch_size = base_global_batch_size
        self.rule: Literal["auto", "none", "linear", "sqrt"] = rule
        self.scale_betas = scale_betas
        self.warmup_samples = warmup_samples
        self.warmup_fraction = warmup_fraction
        self.global_batch_size = global_batch_size
        self._num_samples_seen = 0
        self._num_steps: dict[int, int] = {}
        self._warmup_steps = 0.0
        self._source: BatchSizeSource | None = None
        self._trainer: Trainer | None = None
        self._hook: OptimizerStepHook | None = None
        self._last: dict[int, tuple[float, float | Tensor]] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="LearningRateScaling")
        if stage != "fit":
            return
        self._trainer = trainer
        self._source = None if self.global_batch_size else find_batch_size_source(trainer)
        self._hook = OptimizerStepHook(trainer, self._scaling)
        self._hook.install()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._release()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Lightning calls no teardown after an exception.
        self._release()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        largest = self._batch_size()
        if self._source is not None:
            largest = self._source.largest_global_batch_size
        for optimizer in trainer.optimizers:
            resolve_rule(optimizer, self.rule)
            if self.scale_betas:
                check_betas(optimizer, largest / self.base_global_batch_size)
        if self.warmup_fraction:
            self._warmup_steps = self.warmup_fraction * self._planned_steps(trainer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for index, values in self._last.items():
            suffix = f"_{index}" if index else ""
            for name, value in zip(("factor", "scaled"), values, strict=True):
                if not trainer.barebones:
                    # A number stays on the host, a rate that is a tensor on its device.
                    value = torch.as_tensor(value, dtype=torch.float64)
                    topic = f"lightning_mp/learning_rate/{name}{suffix}"
                    pl_module.log(topic, value, on_step=True, on_epoch=False)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"num_samples_seen": self._num_samples_seen, "num_steps": dict(self._num_steps)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._num_samples_seen = state_dict["num_samples_seen"]
        self._num_steps = dict(state_dict["num_steps"])

    @contextmanager
    def _scaling(self, optimizer: Optimizer) -> Iterator[None]:
        assert self._trainer is not None
        index = [item is optimizer for item in self._trainer.optimizers].index(True)
        size = self._batch_size()
        ratio = size / self.base_global_batch_size
        factor = learning_rate_factor(ratio, resolve_rule(optimizer, self.rule))
        factor *= self._warmup_factor(index, size)
        beta_ratio = ratio if self.scale_betas else None
        with scaled_step(optimizer, factor, beta_ratio=beta_ratio):
            self._last[index] = (factor, optimizer.param_groups[0]["lr"])
            yield
        self._num_steps[index] = self._num_steps.get(index, 0) + 1
        if index == 0:
            self._num_samples_seen += size

    def _warmup_factor(self, index: int, size: int) -> float:
        if self.warmup_samples:
            seen = self._num_samples_seen
            if self._source is not None:
                seen = self._source.num_samples_seen
            # The first batch counts, or its step would do nothing.
            return min(1.0, (seen + size) / self.warmup_samples)
        if self._warmup_steps:
            return min(1.0, (self._num_steps.get(index, 0) + 1) / self._warmup_steps)
        return 1.0

    def _batch_size(self) -> int:
        if self.global_batch_size is not None:
            return self.global_batch_size
        if self._source is not None:
            return self._source.planned_global_batch_size
        trainer = self._trainer
        assert trainer is not None
        per_device = loader_batch_size(trainer, asked_by="LearningRateScaling")
        return per_device * trainer.world_size * trainer.accumulate_grad_batches

    def _planned_steps(self, trainer: Trainer) -> int | float:
        source = self._source
        steps = (
            trainer.estimated_stepping_batches if source is None else source.planned_steps(trainer)
        )
        if steps == float("inf"):
            raise ValueError(
                f"warmup_fraction = {self.warmup_fraction} of a training without end; a number of "
                "epochs or steps is needed; set max_epochs or max_steps, or pass warmup_samples"
            )
        return steps

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._trainer = self._source = None

"""Log the gradient noise scale of a run: which global batch size would pay."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_count
from lightning_mp.callbacks.batch_size_source import batch_length
from lightning_mp.callbacks.gradient_noise_scale import GradientNoiseScale
from lightning_mp.callbacks.step_norms import StepNorms
from lightning_mp.callbacks.strategy_check import require_whole_gradients
from lightning_mp.lightning_api import (
    Callback,
    LightningModule,
    MixedPrecision,
    Trainer,
    rank_zero_info,
)
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["GradientNoiseScaleMonitor", "describe_noise_scale"]


def describe_noise_scale(scale: float, standard_error: float, global_batch_size: int) -> str:
    """Say in a line what a noise scale means for a batch size.

    Args:
        scale: Noise scale in samples.
        standard_error: Its standard error in samples.
        global_batch_size: The size in use, in samples over all ranks.

    Returns:
        The line.

    Example:
        >>> describe_noise_scale(300.0, 12.0, 100)
        'gradient noise scale = 300 +- 12 samples; at a global batch size of 100 a step makes 25 % \
of the progress of a step with the true gradient'
    """
    share = global_batch_size / (global_batch_size + scale)
    return (
        f"gradient noise scale = {scale:.4g} +- {standard_error:.2g} samples; at a global batch "
        f"size of {global_batch_size} a step makes {100 * share:.0f} % of the progress of a step "
        "with the true gradient"
    )


class GradientNoiseScaleMonitor(Callback):
    """Estimate the gradient noise scale from the micro-batches and ranks of each step.

    Each step must be the mean of two parts at least: ``accumulate_grad_batches`` times ranks. The
    loss must be a mean over samples. At an opt level the fused step stays fused, gradients are
    unscaled on the way, and steps that overflow are left out. Nothing is read from the device but
    what a logger asks for; ranks exchange four numbers per measured step.

    Logged at each measured step, all under ``lightning_mp/gradient_noise/``: ``scale`` and its
    ``standard_error``, in samples; ``trace`` of the covariance and ``gradient_square``, in units of
    a squared gradient. Printed at the end: what the scale means for the batch size in use.

    Args:
        every_n_steps: Measure one of so many optimizer steps, at least 1.
        average_steps: Number of measured steps that the average remembers, at least 1.
        per_device_batch_size: Samples in a batch of a rank, where the batch does not tell: by
            default the first dimension of its first tensor.

    Raises:
        ValueError: An argument is out of its range, or (when training starts) a step has only one
            part, or is not Lightning's own.
        TypeError: When training starts: the strategy shards gradients.

    Example:
        >>> GradientNoiseScaleMonitor(every_n_steps=10).every_n_steps
        10
    """

    # The precision plugin then does not hand out FP32 gradients for this hook's sake.
    reads_gradients = False

    def __init__(
        self,
        every_n_steps: int = 1,
        average_steps: int = 100,
        per_device_batch_size: int | None = None,
    ) -> None:
        require_count("every_n_steps", every_n_steps)
        require_count("average_steps", average_steps)
        if per_device_batch_size is not None:
            require_count("per_device_batch_size", per_device_batch_size)
        self.every_n_steps = every_n_steps
        self.average_steps = average_steps
        self.per_device_batch_size = per_device_batch_size
        # The averages stand here while there is no model.
        self.noise = GradientNoiseScale([], average_steps)
        self._norms: StepNorms | None = None
        self._num_steps = 0
        self._batch_size = 0
        self._step_size = 0
        self._global_batch_size = 0

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="GradientNoiseScaleMonitor")
        if stage != "fit":
            return
        require_whole_gradients(trainer, asked_by="GradientNoiseScaleMonitor")
        if not pl_module.automatic_optimization:
            raise ValueError(
                "automatic_optimization = False with GradientNoiseScaleMonitor, which cannot tell "
                "the parts of a step then; only True is allowed; use GradientNoiseScale of "
                "lightning_mp.callbacks.gradient_noise_scale in training_step"
            )
        num_parts = trainer.accumulate_grad_batches * trainer.world_size
        if num_parts < 2:
            raise ValueError(
                f"parts of a step = {num_parts} (accumulate_grad_batches x ranks) with "
                "GradientNoiseScaleMonitor; 2 or more are needed; halve the batch size and set "
                "accumulate_grad_batches=2"
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (optimizer,) = trainer.optimizers
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "optimizer = LBFGS with GradientNoiseScaleMonitor; one backward per micro-batch is "
                "needed, and it runs several; use another optimizer, or remove the callback"
            )
        state = self.noise.state_dict()
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        self.noise = GradientNoiseScale(parameters, self.average_steps)
        self.noise.load_state_dict(state)
        self._norms = StepNorms(trainer)
        self._begin_step()

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch_size = self.per_device_batch_size or batch_length(
            batch, asked_by="GradientNoiseScaleMonitor", argument="per_device_batch_size"
        )

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step_size += self._batch_size * trainer.world_size
        if self.noise.is_measuring:
            self.noise.add_part(
                num_samples=self._batch_size,
                weight=1 / trainer.accumulate_grad_batches,
                loss_scale=_loss_scale(trainer, pl_module),
            )

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        assert self._norms is not None
        self._norms.note(optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self._norms is not None
        for _, norm in self._norms.take():
            if self.noise.is_measuring:
                self.noise.add_step(norm, num_ranks=trainer.world_size)
                self._log(trainer, pl_module)
            self._num_steps += 1
            self._begin_step()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.noise.remove()
        scale, error, *_ = (float(item) for item in self.noise.estimate())
        if not math.isnan(scale):
            rank_zero_info(describe_noise_scale(scale, error, self._global_batch_size))

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.noise.remove()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self.noise.state_dict(), "num_steps": self._num_steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.noise.load_state_dict(state_dict)
        self._num_steps = state_dict["num_steps"]

    def _begin_step(self) -> None:
        self.noise.discard()
        self.noise.is_measuring = self._num_steps % self.every_n_steps == 0
        # The last step of an epoch may be a short one.
        self._global_batch_size = max(self._global_batch_size, self._step_size)
        self._step_size = 0

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.barebones:
            return
        for name, value in self.noise.estimate()._asdict().items():
            # A tensor: it is read only where a logger asks for it.
            pl_module.log(
                f"lightning_mp/gradient_noise/{name}", value, on_step=True, on_epoch=False
            )


def _loss_scale(trainer: Trainer, pl_module: LightningModule) -> Tensor | float:
    plugin: Any = trainer.precision_plugin
    if isinstance(plugin, AmpPrecision):
        scaler = plugin.engine.scaler
        return 1.0 if scaler.is_identity else scaler.scale
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        scaler: Any = plugin.scaler
        return scaler.scale(torch.ones((), device=pl_module.device))
    return 1.0

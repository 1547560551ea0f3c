"""Log the norm of the gradients and raise an alarm when it shoots up.

A gradient norm that leaps in the first steps is the earliest sign of a learning rate that is too
large for the batch; later it announces a divergence, or a bad batch.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_choice, require_count
from lightning_mp.callbacks.gradient_norm_watch import GradientNormSpike, GradientNormWatch
from lightning_mp.callbacks.step_norms import StepNorms
from lightning_mp.callbacks.strategy_check import require_whole_gradients
from lightning_mp.lightning_api import (
    Callback,
    LightningModule,
    MixedPrecision,
    Trainer,
    rank_zero_info,
    rank_zero_warn,
)
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["GradientNormMonitor", "describe_first_norms"]


def describe_first_norms(norms: list[float]) -> str:
    """Sum up the gradient norms of the first steps of a run in a line.

    Args:
        norms: L2 norm of each step, in order; at least one.

    Returns:
        The line.

    Example:
        >>> describe_first_norms([2.0, 1.0, 4.0])
        'gradient norm of the first 3 steps: first 2, median 2, largest 4 (step 2), last 4'
    """
    median = sorted(norms)[len(norms) // 2]
    largest = max(range(len(norms)), key=lambda step: norms[step])
    return (
        f"gradient norm of the first {len(norms)} steps: first {norms[0]:.4g}, median "
        f"{median:.4g}, largest {norms[largest]:.4g} (step {largest}), last {norms[-1]:.4g}"
    )


class GradientNormMonitor(Callback):
    """Log the L2 norm of each optimizer's gradients and tell when it shoots up.

    The norm is that of unscaled gradients before clipping, over all ranks. At an opt level it is
    the one that the step computes anyway: the fused step stays fused, and a clean step never waits
    for the device. A step skipped by a moving loss scale is no alarm; OverflowLogger tells of it.

    Logged: ``lightning_mp/gradient_norm/l2`` (with ``_1`` and so on for further optimizers), each
    step. Printed: one line after the first ``num_watched_steps`` steps, and one for each alarm.

    Args:
        num_watched_steps: Number of first steps that are summed up in a line; 0 for none.
        spike_factor: How many times the typical norm is an alarm, above 1. Typical is the geometric
            mean of the last steps, of at least 3.
        average_steps: Number of steps that it remembers, at least 1.
        on_spike: ``"log"`` prints an alarm, ``"warn"`` warns, ``"stop"`` warns and ends the
            training after the next step (all ranks at the same one; min_steps and min_epochs hold).

    Attributes:
        spikes: The alarms so far, by the index of the optimizer.

    Raises:
        ValueError: An argument is out of its range.
        TypeError: When training starts: the strategy shards gradients.

    Example:
        >>> GradientNormMonitor(on_spike="stop").spikes
        {}
    """

    # The precision plugin then does not hand out FP32 gradients for this hook's sake.
    reads_gradients = False

    def __init__(
        self,
        num_watched_steps: int = 20,
        spike_factor: float = 10.0,
        average_steps: int = 50,
        on_spike: Literal["log", "warn", "stop"] = "warn",
    ) -> None:
        require_count("num_watched_steps", num_watched_steps, minimum=0)
        require_choice("on_spike", on_spike, ("log", "warn", "stop"))
        GradientNormWatch(spike_factor, average_steps)
        self.num_watched_steps = num_watched_steps
        self.spike_factor = spike_factor
        self.average_steps = average_steps
        self.on_spike = on_spike
        self.spikes: dict[int, list[GradientNormSpike]] = {}
        self._watches: dict[int, GradientNormWatch] = {}
        self._first_norms: dict[int, list[Tensor]] = {}
        self._norms: StepNorms | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="GradientNormMonitor")
        if stage == "fit":
            require_whole_gradients(trainer, asked_by="GradientNormMonitor")
            self._norms = StepNorms(trainer)

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        self._step_norms().note(optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.on_spike == "stop":
            # Ranks agree on when: each waits for its steps up to the one before.
            self._report(trainer, wait=True)
        for index, norm in self._step_norms().take():
            self._observe(trainer, index, norm)
            suffix = f"_{index}" if index else ""
            if not trainer.barebones:
                # A tensor: it is read only where a logger asks for it.
                pl_module.log(
                    f"lightning_mp/gradient_norm/l2{suffix}", norm, on_step=True, on_epoch=False
                )
        if self.on_spike != "stop":
            self._report(trainer, wait=False)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer, wait=True)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "watches": {index: watch.state_dict() for index, watch in self._watches.items()},
            "spikes": {
                index: [tuple(item) for item in items] for index, items in self.spikes.items()
            },
            "first_norms": {
                index: [float(norm) for norm in norms] for index, norms in self._first_norms.items()
            },
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._watches = {}
        for index, state in state_dict["watches"].items():
            self._watches[index] = GradientNormWatch(self.spike_factor, self.average_steps)
            self._watches[index].load_state_dict(state)
        self.spikes = {
            index: [GradientNormSpike(*item) for item in items]
            for index, items in state_dict["spikes"].items()
        }
        self._first_norms = {
            index: [torch.tensor(norm) for norm in norms]
            for index, norms in state_dict["first_norms"].items()
        }

    def _observe(self, trainer: Trainer, index: int, norm: Tensor) -> None:
        if index not in self._watches:
            self._watches[index] = GradientNormWatch(self.spike_factor, self.average_steps)
        watch = self._watches[index]
        watch.allows_overflow = _skips_overflows(trainer)
        watch.observe(norm)
        if watch.num_steps > self.num_watched_steps:
            return
        norms = self._first_norms.setdefault(index, [])
        norms.append(norm)
        if watch.num_steps == self.num_watched_steps:
            suffix = f" (optimizer {index})" if index else ""
            rank_zero_info(describe_first_norms([float(item) for item in norms]) + suffix)
            del self._first_norms[index]

    def _report(self, trainer: Trainer, *, wait: bool) -> None:
        for index, watch in self._watches.items():
            for spike in watch.take(wait=wait):
                self.spikes.setdefault(index, []).append(spike)
                self._tell(index, spike)
                trainer.should_stop |= self.on_spike == "stop"

    def _tell(self, index: int, spike: GradientNormSpike) -> None:
        message = (
            f"gradient norm of step {spike.step}, optimizer {index} = {spike.norm:.4g}; typical "
            f"was {spike.typical_norm:.4g}. Lower the learning rate or warm it up, clip "
            "(MasterGradClip), and look at the batch of that step."
        )
        if self.on_spike == "log":
            rank_zero_info(message)
        else:
            rank_zero_warn(message)

    def _step_norms(self) -> StepNorms:
        if self._norms is None:
            raise RuntimeError(
                "GradientNormMonitor has no Trainer yet; its hooks run inside Trainer.fit; add it "
                "to Trainer(callbacks=[...])"
            )
        return self._norms


def _skips_overflows(trainer: Trainer) -> bool:
    plugin: Any = trainer.precision_plugin
    if isinstance(plugin, AmpPrecision):
        return plugin.engine.properties.is_dynamic
    return isinstance(plugin, MixedPrecision) and plugin.scaler is not None

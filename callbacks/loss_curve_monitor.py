"""Read the training loss as a practitioner would, and say what it tells of batch size and rate."""

from collections import deque
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_choice, require_count
from lightning_mp.callbacks.loss_curve import LossVerdict, Verdict, judge_loss_curve
from lightning_mp.lightning_api import (
    Callback,
    LightningModule,
    Trainer,
    rank_zero_info,
    rank_zero_warn,
)
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["LossCurveMonitor"]


class LossCurveMonitor(Callback):
    """Judge the loss of the last optimizer steps from time to time, with advice.

    The loss of a step is the mean over its micro-batches and ranks. It is read from the device only
    when it is judged. After a resume with several ranks the losses since the last reading, fewer
    than ``every_n_steps``, are those of rank 0.

    Logged with each verdict: ``lightning_mp/loss_curve/jaggedness`` (noise of a step relative to
    the loss) and ``lightning_mp/loss_curve/trend`` (change over the window relative to the loss).
    A verdict is told when it changes.

    Args:
        window_steps: Number of optimizer steps that are judged together, at least 16.
        every_n_steps: Judge after so many steps, once there are ``window_steps``.
        on_verdict: ``"log"`` prints a verdict; ``"warn"`` warns if it is not ``"healthy"``;
            ``"stop"`` does, and ends the training at ``"divergence"``.
        metric: Name of a metric logged in each step in place of the loss that ``training_step``
            returns; needed in manual optimisation that returns none.

    Attributes:
        verdicts: Number of verdicts of each kind.
        last: The last verdict.

    Raises:
        ValueError: An argument is out of its range, or (in training) there is no loss to judge.

    Example:
        >>> LossCurveMonitor(on_verdict="stop").verdicts
        {}
    """

    def __init__(
        self,
        window_steps: int = 200,
        every_n_steps: int = 50,
        on_verdict: Literal["log", "warn", "stop"] = "log",
        metric: str | None = None,
    ) -> None:
        require_count("window_steps", window_steps, minimum=16)
        require_count("every_n_steps", every_n_steps)
        require_choice("on_verdict", on_verdict, ("log", "warn", "stop"))
        self.window_steps = window_steps
        self.every_n_steps = every_n_steps
        self.on_verdict = on_verdict
        self.metric = metric
        self.verdicts: dict[Verdict, int] = {}
        self.last: LossVerdict | None = None
        self._losses: deque[float] = deque(maxlen=window_steps)
        # Of steps since the last reading, and of batches since the last step.
        self._unread: list[Tensor] = []
        self._in_step: list[Tensor] = []
        self._last_step = 0

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="LossCurveMonitor")

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_step = trainer.global_step

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = self._loss_of(trainer, pl_module, outputs)
        if loss is not None:
            self._in_step.append(loss)
        if trainer.global_step == self._last_step or not self._in_step:
            return
        self._last_step = trainer.global_step
        self._unread.append(torch.stack(self._in_step).mean())
        self._in_step = []
        if len(self._unread) >= self.every_n_steps:
            self._read(trainer)
            if len(self._losses) == self._losses.maxlen:
                self._judge(trainer, pl_module)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": list(self._losses),
            "unread": [float(item) for item in self._unread],
            "in_step": [float(item) for item in self._in_step],
            "verdicts": dict(self.verdicts),
            "last": None if self.last is None else tuple(self.last),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._losses.extend(state_dict["losses"])
        self._unread = [torch.tensor(item) for item in state_dict["unread"]]
        self._in_step = [torch.tensor(item) for item in state_dict["in_step"]]
        self.verdicts = dict(state_dict["verdicts"])
        last = state_dict["last"]
        self.last = None if last is None else LossVerdict(*last)

    def _loss_of(self, trainer: Trainer, pl_module: LightningModule, outputs: Any) -> Tensor | None:
        if self.metric is not None:
            value = trainer.callback_metrics.get(self.metric)
        else:
            value = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if value is not None and pl_module.automatic_optimization:
                # Lightning has divided it for the accumulation.
                value = value * trainer.accumulate_grad_batches
        if value is None and (self.metric is not None or not pl_module.automatic_optimization):
            raise ValueError(
                f"metric = {self.metric!r} of LossCurveMonitor, and training_step has neither "
                "returned a loss nor logged a metric of that name; log one at each step and name "
                "it"
            )
        return None if value is None else value.detach().float().clone()

    def _read(self, trainer: Trainer) -> None:
        # Those of a checkpoint are on the CPU.
        device = self._unread[-1].device
        losses: Any = torch.stack([item.to(device) for item in self._unread])
        self._unread = []
        self._losses.extend(trainer.strategy.reduce(losses, reduce_op="mean").tolist())

    def _judge(self, trainer: Trainer, pl_module: LightningModule) -> None:
        before, self.last = self.last, judge_loss_curve(self._losses)
        verdict = self.last.verdict
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        if not trainer.barebones:
            for name in ("jaggedness", "trend"):
                value = torch.tensor(getattr(self.last, name))
                pl_module.log(
                    f"lightning_mp/loss_curve/{name}", value, on_step=True, on_epoch=False
                )
        if before is None or before.verdict != verdict:
            self._tell(trainer, self.last)
        trainer.should_stop |= self.on_verdict == "stop" and verdict == "divergence"

    def _tell(self, trainer: Trainer, found: LossVerdict) -> None:
        message = (
            f"loss curve at step {trainer.global_step} = {found.verdict} (noise of a step "
            f"{100 * found.jaggedness:.2g} %, change over {len(self._losses)} steps "
            f"{100 * found.trend:+.2g} % of the loss): {found.advice}."
        )
        if self.on_verdict == "log" or found.verdict == "healthy":
            rank_zero_info(message)
        else:
            rank_zero_warn(message)

"""Say where the memory of a training step goes, and what other batch sizes would need."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.argument_checks import require_count
from lightning_mp.callbacks.batch_size_source import batch_length
from lightning_mp.callbacks.memory_report import (
    CATEGORIES,
    Maximum,
    MemoryReport,
    Peak,
    fit_memory_lines,
    format_report,
    predict_peak_bytes,
)
from lightning_mp.callbacks.memory_tracker import MemoryTracker
from lightning_mp.lightning_api import Callback, LightningModule, Trainer, rank_zero_info
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["MemoryBreakdown"]


class MemoryBreakdown(Callback):
    """Measure the memory of chosen optimizer steps by what it is for, and print a table.

    Counted are the tensors of this rank, on any device, the CPU too: no accelerator is needed to
    learn what a model would take there. What kernels allocate inside and what communication holds
    is not seen. The measured steps are several times as slow; the others cost nothing. Models under
    ``torch.compile`` are not measured inside.

    Logged at a measured step, in bytes: ``lightning_mp/memory/peak_bytes``, and its parts
    ``parameters_bytes`` (buffers too), ``gradients_bytes``, ``optimizer_bytes`` (masters too),
    ``activations_bytes`` (what forwards leave for their backwards, and the batch) and
    ``temporary_bytes``.

    Args:
        at_steps: Optimizer steps to measure, counted from 0. The first one makes the optimizer's
            state, the second shows a usual step.
        predict_per_device_batch_sizes: Batch sizes of a device to predict; by default two and four
            times the measured one. Two measured sizes, as under BatchSizeWarmup, predict exactly as
            long as samples have one shape; one size predicts roughly.
        num_modules: Number of modules with most activations to name.

    Attributes:
        reports: What was measured.

    Raises:
        ValueError: An argument is out of its range, or (in training) a batch has no tensor.

    Example:
        >>> MemoryBreakdown(predict_per_device_batch_sizes=[64, 128]).at_steps
        [1]
    """

    # The precision plugin then does not hand out FP32 gradients for this hook's sake.
    reads_gradients = False

    def __init__(
        self,
        at_steps: list[int] | None = None,
        predict_per_device_batch_sizes: list[int] | None = None,
        num_modules: int = 5,
    ) -> None:
        self.at_steps = [1] if at_steps is None else list(at_steps)
        for step in self.at_steps:
            require_count("at_steps", step, minimum=0)
        self.predict_per_device_batch_sizes = predict_per_device_batch_sizes
        for size in predict_per_device_batch_sizes or []:
            require_count("predict_per_device_batch_sizes", size)
        require_count("num_modules", num_modules, minimum=0)
        self.num_modules = num_modules
        self.reports: list[MemoryReport] = []
        self._tracker: MemoryTracker | None = None
        self._context = ExitStack()
        self._step = 0
        self._batch_size = 0

    def predict(self, per_device_batch_size: int) -> int:
        """Return the peak memory of a step at another batch size, in bytes.

        Args:
            per_device_batch_size: Samples in the batch of a device; a step must have been measured.
        """
        return predict_peak_bytes(fit_memory_lines(self.reports), per_device_batch_size)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="MemoryBreakdown")

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._tracker is None:
            if trainer.global_step not in self.at_steps:
                return
            self._step = trainer.global_step
            self._tracker = MemoryTracker(pl_module, _optimizer_tensors(trainer))
            self._context.enter_context(self._tracker)
        self._batch_size = batch_length(batch, "MemoryBreakdown", "a batch with one")
        self._tracker.add([batch], "activations")

    @override
    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        if self._tracker is not None:
            self._tracker.begin_backward()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._tracker is not None:
            self._tracker.end_backward()

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if self._tracker is not None:
            self._tracker.begin_step()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        tracker = self._tracker
        if tracker is None or trainer.global_step == self._step:
            return
        tracker.end_step(_optimizer_tensors(trainer))
        self._stop()
        report = tracker.report(batch_size=self._batch_size)
        tracker.remove()
        self.reports.append(report)
        self._log(trainer, pl_module, report.step_peak)
        sizes = self.predict_per_device_batch_sizes
        others = [2 * report.batch_size, 4 * report.batch_size] if sizes is None else sizes
        lines = fit_memory_lines(self.reports)
        rank_zero_info("\n" + format_report(report, lines, others, self.num_modules))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._abandon()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._abandon()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "reports": [
                [
                    report.batch_size,
                    tuple(report.pass_peak),
                    tuple(report.optimizer_peak),
                    report.activation_bytes,
                    [tuple(item) for item in report.maxima],
                ]
                for report in self.reports
            ]
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reports = [
            MemoryReport(
                size,
                Peak(*pass_peak),
                Peak(*optimizer_peak),
                activations,
                tuple(Maximum(*item) for item in maxima),
            )
            for size, pass_peak, optimizer_peak, activations, maxima in state_dict["reports"]
        ]

    def _stop(self) -> None:
        self._context.close()
        self._tracker = None

    def _abandon(self) -> None:
        tracker = self._tracker
        self._stop()
        if tracker is not None:
            tracker.remove()

    def _log(self, trainer: Trainer, pl_module: LightningModule, peak: Peak) -> None:
        values = {"peak": peak.num_bytes}
        values |= {name: peak.by_category.get(name, 0) for name in CATEGORIES}
        for name, value in values.items():
            if not trainer.barebones:
                # A float64 tensor on the host: exact, and nothing is copied.
                pl_module.log(
                    f"lightning_mp/memory/{name}_bytes",
                    torch.tensor(value, dtype=torch.float64),
                    on_step=True,
                    on_epoch=False,
                )


def _optimizer_tensors(trainer: Trainer) -> Iterator[Any]:
    for optimizer in trainer.optimizers:
        # A dict subclass would be a leaf to those who walk it.
        yield from (dict(state) for state in optimizer.state.values())
    plugin = trainer.precision_plugin
    if isinstance(plugin, AmpPrecision) and plugin.engine.is_converted:
        masters = plugin.engine.masters
        for parameter in masters.half_parameters:
            yield masters.stored(parameter)[0]

"""Steps of whole fits on a device, interleaved by column."""

import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from benchkit.column import parse_column
from benchkit.fit import fit
from benchkit.module import BenchModule
from benchkit.workload import make_workload

__all__ = ["measure_fits"]

_NUM_WARMUP_STEPS = 3


def measure_fits(
    *,
    workload: str,
    columns: Sequence[str],
    device: str,
    num_rounds: int,
    num_steps: int,
    deadline: float | None = None,
    is_smoke: bool = False,
) -> dict[str, list[dict[str, float]]]:
    """Train every column in each round; all steps together are timed, waiting at both ends.

    Args:
        workload: Name of a workload.
        columns: Names of columns.
        device: ``"cuda"`` or ``"cpu"``.
        num_rounds: Number of rounds.
        num_steps: Number of timed steps, after three for warming up.
        deadline: Time of ``time.monotonic`` after which no further fit starts.
        is_smoke: Whether the workload is tiny.

    Returns:
        For each column and round ``seconds`` of a step, ``peak_bytes`` on a GPU, else 0, and the
        last ``loss``. Columns that there was no time for have fewer rounds, or none.
    """
    what = make_workload(workload, is_smoke=is_smoke)
    batches = what.make_batches(_NUM_WARMUP_STEPS + num_steps)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in columns}
    for round_index in range(num_rounds):
        for name in random.Random(round_index).sample(list(columns), len(columns)):
            if deadline is not None and time.monotonic() > deadline:
                return results
            module, timer = BenchModule(what, parse_column(name)), _FitTimer(device)
            fit(module, batches, [timer], device=device)
            result = {
                "seconds": timer.seconds / num_steps,
                "peak_bytes": timer.peak_bytes,
                "loss": float(module.losses[-1]),
            }
            results[name].append(result)
            print(f"{workload}: {name}: {result['seconds'] * 1e3:.2f} ms", file=sys.stderr)
    return results


class _FitTimer(Callback):
    """Time the steps after those that warm up."""

    def __init__(self, device: str) -> None:
        self.seconds = 0.0
        self.peak_bytes = 0
        self._is_cuda = device == "cuda"
        self._start = 0.0

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if batch_idx + 1 == _NUM_WARMUP_STEPS:
            if self._is_cuda:
                torch.cuda.reset_peak_memory_stats()
            self._start = self._now()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = self._now() - self._start
        if self._is_cuda:
            self.peak_bytes = torch.cuda.max_memory_allocated()

    def _now(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

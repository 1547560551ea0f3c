"""What one column costs in memory and how well it learns; one process for each."""

import statistics
import sys
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from benchkit.column import parse_column
from benchkit.fit import fit
from benchkit.module import BenchModule
from benchkit.process_memory import process_bytes
from benchkit.time_limit import TimeLimit
from benchkit.workload import make_workload

__all__ = ["measure_quality"]

# A loss is the mean of this many steps: one batch alone is noise.
_NUM_AVERAGED_STEPS = 10


def measure_quality(
    *,
    workload: str,
    column: str,
    num_steps: int,
    num_threads: int,
    max_cpu_seconds: float,
    is_smoke: bool = False,
) -> dict[str, float]:
    """Train one column from the start, in a process that does nothing else.

    Args:
        workload: Name of a workload.
        column: Name of a column.
        num_steps: Number of steps.
        num_threads: Number of threads of torch.
        max_cpu_seconds: A fit that takes more processor time ends early.
        is_smoke: Whether the workload is tiny.

    Returns:
        ``peak_bytes`` of the process above what it had before the model was made,
        ``bytes_per_parameter`` of weights, masters, gradients and moments after a step, ``loss``
        and ``accuracy`` (from 0 to 1; each batch is judged before its step) over the last 10
        steps, ``num_steps`` done and ``num_skipped_steps`` among them.
    """
    torch.set_num_threads(num_threads)
    what = make_workload(workload, is_smoke=is_smoke)
    batches = what.make_batches(num_steps)
    base_bytes = process_bytes("VmRSS")
    module = BenchModule(what, parse_column(column), keeps_accuracy=True)
    resident = _ResidentBytes()
    trainer = fit(module, batches, [resident, TimeLimit(max_cpu_seconds)])
    result = {
        "peak_bytes": process_bytes("VmHWM") - base_bytes,
        "bytes_per_parameter": resident.bytes_per_parameter,
        "loss": _tail_mean(module.losses),
        "accuracy": _tail_mean(module.accuracies),
        "num_steps": len(module.losses),
        "num_skipped_steps": getattr(trainer.precision_plugin, "skipped_steps", 0),
    }
    print(
        f"{workload}: {column:<16} loss {result['loss']:.4f} after {result['num_steps']} steps, "
        f"peak memory {result['peak_bytes'] / 2**20:.0f} MiB",
        file=sys.stderr,
    )
    return result


class _ResidentBytes(Callback):
    """Count what lives between two steps because of the parameters."""

    def __init__(self) -> None:
        self.bytes_per_parameter = 0.0

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        storages = (item.untyped_storage() for item in _resident_tensors(trainer, pl_module))
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        num_parameters = sum(parameter.numel() for parameter in pl_module.parameters())
        self.bytes_per_parameter = sum(sizes.values()) / num_parameters


def _resident_tensors(trainer: Trainer, module: LightningModule) -> Iterator[Tensor]:
    parameters = list(module.parameters())
    master_params = getattr(trainer.precision_plugin, "master_params", None)
    for optimizer in trainer.optimizers:
        if master_params is not None:
            parameters += master_params(optimizer)
        for state in optimizer.state.values():
            yield from (item for item in state.values() if isinstance(item, Tensor))
    for parameter in parameters:
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _tail_mean(values: list[Tensor]) -> float:
    return statistics.fmean(float(value) for value in values[-_NUM_AVERAGED_STEPS:])

"""Print what a training run has reached, when it ends."""

import time
from collections.abc import Sequence

from lightning_mp.lightning_api import (
    Callback,
    LightningModule,
    ModelCheckpoint,
    Trainer,
    rank_zero_only,
)
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["RunReport", "run_summary"]

_NOT_AVAILABLE = "-"


class RunReport(Callback):
    """Print a table of results at the end of ``fit``, on rank zero only.

    The rows are the chosen metrics as they are at the end, then precision, loss scale and skipped
    steps (``-`` where the precision has none), optimizer steps, seconds, the folder of the log, and
    the checkpoints: the last one, which the metrics belong to if it was saved after the last epoch,
    and the best by a ``ModelCheckpoint``'s monitor, with the value that it was chosen for.

    Args:
        metrics: Names in ``trainer.callback_metrics`` to print, in this order; ``None`` prints all.

    Example:
        >>> import lightning as L
        >>> trainer = L.Trainer(callbacks=[RunReport(metrics=["val/accuracy"])])
    """

    def __init__(self, metrics: list[str] | None = None) -> None:
        self.metrics = metrics
        self._start_seconds = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer of another distribution of Lightning.

        Args:
            trainer: The Trainer.
            pl_module: The model.
            stage: What the Trainer does.
        """
        require_lightning_trainer(trainer, asked_by="RunReport")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock.

        Args:
            trainer: The Trainer.
            pl_module: The model.
        """
        self._start_seconds = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table.

        Args:
            trainer: The Trainer.
            pl_module: The model.
        """
        seconds = time.perf_counter() - self._start_seconds
        # Every rank collects, as trainer.log_dir is a collective call.
        _print_table(run_summary(trainer, seconds, self.metrics))


def run_summary(
    trainer: Trainer, seconds: float, metrics: Sequence[str] | None = None
) -> dict[str, str]:
    """Collect the rows of :class:`RunReport`; call it on every rank.

    Args:
        trainer: A Trainer that fits or has just fitted.
        seconds: Time that the run took, in seconds.
        metrics: Names in ``trainer.callback_metrics``; ``None`` takes all.

    Returns:
        Text of each row by its name; ``-`` where there is nothing to tell.
    """
    values = trainer.callback_metrics
    names = sorted(values) if metrics is None else metrics
    rows = {
        name: f"{float(values[name]):.4f}" if name in values else _NOT_AVAILABLE for name in names
    }
    precision = trainer.precision_plugin
    return rows | {
        "precision": str(precision.precision),
        "loss scale": _format_optional(getattr(precision, "loss_scale", None)),
        "skipped steps": _format_optional(getattr(precision, "skipped_steps", None)),
        "optimizer steps": str(trainer.global_step),
        "seconds": f"{seconds:.1f}",
        "log": str(trainer.log_dir or _NOT_AVAILABLE),
        **_checkpoint_rows(trainer),
    }


def _checkpoint_rows(trainer: Trainer) -> dict[str, str]:
    rows = {"last checkpoint": _NOT_AVAILABLE}
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        best, score = callback.best_model_path, callback.best_model_score
        if callback.monitor is None:
            rows["last checkpoint"] = best or rows["last checkpoint"]
        elif best and score is not None:
            rows["best checkpoint"] = best
            rows[f"its {callback.monitor}"] = f"{float(score):.4f}"
        if callback.last_model_path:
            rows["last checkpoint"] = callback.last_model_path
    return rows


def _format_optional(number: float | None) -> str:
    return _NOT_AVAILABLE if number is None else f"{number:.10g}"


@rank_zero_only
def _print_table(rows: dict[str, str]) -> None:
    width = max(len(name) for name in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows.items()]
    # The progress bar leaves the cursor at the end of its line.
    print("\n".join(["", "Run report", *lines]), flush=True)

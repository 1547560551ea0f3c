"""Log which steps overflowed, where, and what the loss scale did."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from lightning_mp.amp.opt_levels import PRECISION_LEVELS
from lightning_mp.amp.overflow import OverflowRecord
from lightning_mp.lightning_api import Callback, LightningModule, Trainer, rank_zero_info
from lightning_mp.precision import AmpPrecision
from lightning_mp.trainer_check import require_lightning_trainer

__all__ = ["OverflowLogger", "format_overflow"]


def format_overflow(record: OverflowRecord, max_names: int = 5) -> str:
    """Describe one skipped step in a line.

    Args:
        record: The step.
        max_names: Number of parameter names spelt out; the others are counted.

    Returns:
        The line.

    Example:
        >>> record = OverflowRecord(3, 0, 65536.0, 32768.0, ("head.weight", "head.bias"), 1)
        >>> for part in format_overflow(record, max_names=1).split("; "):
        ...     print(part)
        step 3, optimizer 0: overflow, skipped
        loss scale 65536 -> 32768
        non-finite in head.weight and 1 more
        1 skipped so far
    """
    names = list(record.parameter_names[:max_names])
    num_more = len(record.parameter_names) - len(names)
    where = ", ".join(names) + (f" and {num_more} more" if num_more else "")
    return (
        f"step {record.step}, optimizer {record.optimizer_index}: overflow, skipped; loss scale "
        f"{record.scale:.10g} -> {record.new_scale:.10g}; non-finite in {where or 'other ranks'}; "
        f"{record.num_skipped_steps} skipped so far"
    )


class OverflowLogger(Callback):
    """Tell of each optimizer step that was skipped because of an infinite or NaN gradient.

    Prints one line per skipped step (rank 0) and logs ``lightning_mp/overflow/loss_scale`` (with
    ``_1`` and so on for further losses) and, on overflow, ``lightning_mp/overflow/skipped_steps``.
    A run of skips that does not end is warned about once by the precision plugin. Clean steps never
    wait for the device.

    Args:
        max_names: Number of parameter names spelt out in a line, at least 1.

    Attributes:
        num_overflows: Number of skipped steps per optimizer index.
        overflows_by_parameter: In how many skipped steps each parameter's gradient was not finite.

    Raises:
        ValueError: ``max_names`` is below 1, or (when training starts) the Trainer does not run at
            an opt level.

    Example:
        >>> OverflowLogger(max_names=3).num_overflows
        Counter()
    """

    def __init__(self, max_names: int = 5) -> None:
        if max_names < 1:
            raise ValueError(
                f"max_names = {max_names}; it must be at least 1. Leave the callback out to log "
                "nothing."
            )
        self.max_names = max_names
        self.num_overflows: Counter[int] = Counter()
        self.overflows_by_parameter: Counter[str] = Counter()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        require_lightning_trainer(trainer, asked_by="OverflowLogger")
        plugin = trainer.precision_plugin
        if not isinstance(plugin, AmpPrecision):
            raise ValueError(
                f"precision = {plugin.precision!r} has no overflow records; OverflowLogger works "
                f"with {', '.join(map(repr, PRECISION_LEVELS))}. Set one of those or remove the "
                "callback."
            )

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        plugin = _plugin(trainer)
        records = plugin.overflows()
        self._report(records)
        name = "lightning_mp/overflow/"
        for index, scaler in enumerate(plugin.engine.scalers):
            suffix = f"_{index}" if index else ""
            # A tensor: it is read only where a logger asks for it.
            pl_module.log(f"{name}loss_scale{suffix}", scaler.scale, batch_size=1)
        if records:
            num_skipped = float(records[-1].num_skipped_steps)
            pl_module.log(name + "skipped_steps", num_skipped, batch_size=1)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(_plugin(trainer).overflows(wait=True))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "num_overflows": dict(self.num_overflows),
            "overflows_by_parameter": dict(self.overflows_by_parameter),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_overflows = Counter(state_dict["num_overflows"])
        self.overflows_by_parameter = Counter(state_dict["overflows_by_parameter"])

    def _report(self, records: Sequence[OverflowRecord]) -> None:
        for record in records:
            self.num_overflows[record.optimizer_index] += 1
            self.overflows_by_parameter.update(record.parameter_names)
            rank_zero_info(format_overflow(record, self.max_names))


def _plugin(trainer: Trainer) -> AmpPrecision:
    plugin = trainer.precision_plugin
    assert isinstance(plugin, AmpPrecision)
    return plugin

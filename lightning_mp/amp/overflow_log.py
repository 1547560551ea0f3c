"""The overflows of an engine's optimizer steps, kept until somebody asks for them."""

from collections import deque

from torch import Tensor

from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.overflow import OverflowRecord, OverflowTracker

__all__ = ["OverflowLog"]

_MAX_RECORDS = 1000


class OverflowLog:
    """Note how steps ended; nothing waits for the device while they are clean."""

    def __init__(self) -> None:
        self._tracker = OverflowTracker()
        # Bounded: nobody need ask for the records.
        self._records: deque[OverflowRecord] = deque(maxlen=_MAX_RECORDS)

    def note(
        self,
        check: GradientCheck,
        scales: tuple[Tensor, Tensor],
        *,
        optimizer_index: int,
        num_steps: int,
    ) -> None:
        """Note one step.

        Args:
            check: What was found in its gradients.
            scales: The loss scale of the gradients, and the one that follows it.
            optimizer_index: Index of the optimizer.
            num_steps: Number of steps before this one.

        Warns:
            LossScaleCollapseWarning: Many steps in a row were skipped.
        """
        self._tracker.push(
            num_steps,
            optimizer_index,
            check.flag,
            scales[0],
            check.finite_flags,
            check.parameter_names,
            new_scale=scales[1],
        )
        self._records += self._tracker.drain()

    def take(self, *, wait: bool = False) -> list[OverflowRecord]:
        """Return the overflows since the last call.

        Args:
            wait: Wait for the device to tell of the latest steps too.
        """
        self._records += self._tracker.drain(wait=wait)
        records = list(self._records)
        self._records.clear()
        return records

    def go_on_from(self, num_skipped_steps: int) -> None:
        """Count skipped steps from a number that was restored.

        Args:
            num_skipped_steps: The number.
        """
        self._tracker.num_skipped_steps = num_skipped_steps

"""Which steps overflowed and where, known late and without stopping clean steps."""

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lightning_mp.amp.host_flag import HostFlag

__all__ = ["LossScaleCollapseWarning", "OverflowRecord", "OverflowTracker"]

_MAX_QUEUED = 64


class LossScaleCollapseWarning(UserWarning):
    """Tell that every step of a long run was skipped."""


@dataclass(frozen=True)
class OverflowRecord:
    """Hold what is known of one skipped step.

    Attributes:
        step: Step number given to :meth:`OverflowTracker.push`.
        optimizer_index: Index of the optimizer.
        scale: Loss scale used for the step.
        new_scale: Loss scale after the update that this step causes; equal to ``scale`` where
            the scale is static, at its floor, or held by hysteresis.
        parameter_names: All parameters with an inf or NaN gradient, in the model's order. Empty
            if the overflow was another rank's.
        num_skipped_steps: Number of skipped steps so far, this one included.
    """

    step: int
    optimizer_index: int
    scale: float
    new_scale: float
    parameter_names: tuple[str, ...]
    num_skipped_steps: int


@dataclass(frozen=True)
class _Entry:
    """One optimizer step, as pushed."""

    step: int
    optimizer_index: int
    found_inf: HostFlag
    scale: Tensor
    new_scale: Tensor
    finite_flags: Tensor
    names: Sequence[str]

    def nonfinite_names(self) -> tuple[str, ...]:
        flags = self.finite_flags.tolist()
        return tuple(
            name for name, is_finite in zip(self.names, flags, strict=True) if not is_finite
        )


class OverflowTracker:
    """Collect one entry per optimizer step, and say which steps were skipped and why.

    Nothing waits for the device while steps are clean: flags are read when they have arrived, and
    the tensors of an entry only if it overflowed. Skipped steps are kept until :meth:`drain`, so
    call it regularly, as after each optimizer step.

    Args:
        warn_after: Number of skipped steps in a row of one optimizer after which
            :meth:`drain` emits one :class:`LossScaleCollapseWarning`, at least 1. A good step of
            that optimizer re-arms it. Optimizers that collapse together are warned about once.

    Attributes:
        num_skipped_steps: Number of skipped steps seen; set it to go on from a checkpoint.

    Raises:
        ValueError: If ``warn_after`` is not a positive int.

    Example:
        >>> import torch
        >>> tracker = OverflowTracker()
        >>> flag, scale = HostFlag(torch.tensor(1.0)), torch.tensor(1024.0)
        >>> tracker.push(0, 0, flag, scale, torch.tensor([True, False]), ["weight", "bias"])
        >>> tracker.drain()[0].parameter_names
        ('bias',)
    """

    def __init__(self, warn_after: int = 25) -> None:
        if isinstance(warn_after, bool) or not isinstance(warn_after, int) or warn_after < 1:
            raise ValueError(
                f"warn_after = {warn_after!r}; allowed is an int of at least 1; "
                "25 steps are the default"
            )
        self.num_skipped_steps = 0
        self._warn_after = warn_after
        self._queue: deque[_Entry] = deque()
        self._overflowed: list[tuple[_Entry, int]] = []
        self._collapse: tuple[_Entry, _Entry] | None = None
        self._runs: dict[int, int] = {}
        self._run_starts: dict[int, _Entry] = {}

    @property
    def num_consecutive_skips(self) -> int:
        """Return the number of skipped steps in a row, of the optimizer with most of them."""
        return max(self._runs.values(), default=0)

    def push(
        self,
        step: int,
        optimizer_index: int,
        found_inf: HostFlag,
        scale: Tensor,
        finite_flags: Tensor,
        names: Sequence[str],
        *,
        new_scale: Tensor | None = None,
    ) -> None:
        """Add one optimizer step.

        Waits for the device only if the oldest of 64 entries has still not arrived.

        Args:
            step: Step number.
            optimizer_index: Index of the optimizer.
            found_inf: Whether the step was skipped.
            scale: Loss scale used for it (0-dim). This and the other tensors are copied, on their
                device, so that they may be written again.
            finite_flags: Whether each parameter's gradient was finite (1-dim, bool).
            names: Name of each parameter, in the model's order; kept by reference.
            new_scale: Loss scale after the update this step causes (0-dim), such as
                ``LossScaler.next_scale``; ``None`` if it does not move.

        Raises:
            ValueError: If there is not one flag for each name.
        """
        if tuple(finite_flags.shape) != (len(names),):
            raise ValueError(
                f"finite_flags has shape {tuple(finite_flags.shape)} for {len(names)} names; "
                "one flag per name is allowed; pass the flags and names of the same parameters"
            )
        scale = scale.detach().clone()
        new_scale = scale if new_scale is None else new_scale.detach().clone()
        flags = finite_flags.detach().clone()
        self._queue.append(_Entry(step, optimizer_index, found_inf, scale, new_scale, flags, names))
        self._settle()
        while len(self._queue) > _MAX_QUEUED:
            self._settle_oldest()

    def drain(self, wait: bool = False) -> list[OverflowRecord]:
        """Return the skipped steps seen since the last call, oldest first.

        Args:
            wait: Whether to wait for flags still on their way; without it their entries stay
                queued.

        Returns:
            One record per skipped step.
        """
        self._settle()
        while wait and self._queue:
            self._settle_oldest()
        if self._collapse is not None:
            message = self._collapse_message(*self._collapse)
            self._collapse = None
            # Before the records are taken, so that none is lost where warnings are errors.
            warnings.warn(message, LossScaleCollapseWarning, stacklevel=2)
        overflowed, self._overflowed = self._overflowed, []
        return [
            OverflowRecord(
                step=entry.step,
                optimizer_index=entry.optimizer_index,
                scale=entry.scale.item(),
                new_scale=entry.new_scale.item(),
                parameter_names=entry.nonfinite_names(),
                num_skipped_steps=num_skipped_steps,
            )
            for entry, num_skipped_steps in overflowed
        ]

    def _settle(self) -> None:
        while self._queue and self._queue[0].found_inf.is_ready():
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        entry = self._queue.popleft()
        index = entry.optimizer_index
        if not entry.found_inf.read():
            self._runs.pop(index, None)
            self._run_starts.pop(index, None)
            return
        self.num_skipped_steps += 1
        self._overflowed.append((entry, self.num_skipped_steps))
        first = self._run_starts.setdefault(index, entry)
        is_collapsed_already = self.num_consecutive_skips >= self._warn_after
        self._runs[index] = self._runs.get(index, 0) + 1
        if self.num_consecutive_skips == self._warn_after and not is_collapsed_already:
            self._collapse = (first, entry)

    def _collapse_message(self, first: _Entry, last: _Entry) -> str:
        names = first.nonfinite_names()
        culprit = f"is {names[0]!r}" if names else "is none of this rank's"
        return (
            f"{self._warn_after} optimizer steps in a row were skipped because of inf or NaN "
            f"gradients (optimizer {first.optimizer_index}, steps {first.step} to {last.step}); "
            f"the loss scale is now {last.new_scale.item():g}; the first parameter that overflowed "
            f"{culprit}; lower the learning rate, check the data and the loss for NaN, clip the "
            "gradients, or use bfloat16 ('O2-bf16')"
        )

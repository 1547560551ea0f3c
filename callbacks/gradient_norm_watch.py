"""Follow the norm of the gradients of one optimizer and notice when it shoots up."""

import math
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.callbacks.argument_checks import require_count, require_number

__all__ = ["GradientNormSpike", "GradientNormWatch"]

# A mean of fewer norms says too little to compare with.
_MIN_HISTORY = 3
_MAX_QUEUED = 64


class GradientNormSpike(NamedTuple):
    """Describe one alarm.

    Attributes:
        step: Number of the optimizer step, counted from 0.
        norm: L2 norm of its gradients.
        typical_norm: Geometric mean of the norms before it; NaN if there was none.
    """

    step: int
    norm: float
    typical_norm: float


class _Entry(NamedTuple):
    step: int
    is_spike: HostFlag
    norm: Tensor
    log_mean: Tensor


class GradientNormWatch:
    """Compare each norm with the geometric mean of those before it, on their device.

    The mean forgets exponentially. What exceeds it by more than ``spike_factor`` counts as that
    much, so that one spike does not hide the next, and a lasting change becomes the new normal.
    Nothing waits for the device unless somebody asks to.

    Args:
        spike_factor: How many times the typical norm is an alarm, above 1.
        average_steps: Number of steps that the mean remembers, at least 1.
        allows_overflow: Whether a norm that is not finite is no alarm, as where a moving loss
            scale skips such steps.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> watch = GradientNormWatch(spike_factor=10.0)
        >>> for norm in (1.0, 1.1, 0.9, 1.0, 50.0):
        ...     watch.observe(torch.tensor(norm))
        >>> [(spike.step, spike.norm) for spike in watch.take()]
        [(4, 50.0)]
    """

    def __init__(
        self,
        spike_factor: float = 10.0,
        average_steps: int = 50,
        *,
        allows_overflow: bool = False,
    ) -> None:
        require_number("spike_factor", spike_factor, above=1)
        require_count("average_steps", average_steps)
        self.allows_overflow = allows_overflow
        self.num_steps = 0
        self._log_factor = math.log(spike_factor)
        self._average_steps = average_steps
        self._log_mean = torch.zeros(())
        self._num_averaged = torch.zeros(())
        self._queue: deque[_Entry] = deque()
        self._spikes: list[GradientNormSpike] = []

    @torch.no_grad()
    def observe(self, norm: Tensor) -> None:
        """Take the norm of one optimizer step.

        Args:
            norm: Floating scalar on any device.
        """
        mean, count = self._log_mean.to(norm.device), self._num_averaged.to(norm.device)
        value = norm.float().log()
        excess = value - mean
        is_spike = (excess > self._log_factor) & (count >= _MIN_HISTORY) & value.isfinite()
        if not self.allows_overflow:
            is_spike |= ~norm.isfinite()
        self._queue.append(_Entry(self.num_steps, HostFlag(is_spike), norm, mean))
        self.num_steps += 1
        # The plain mean of the first ones, an exponential one later.
        rate = (count + 1).clamp(max=self._average_steps).reciprocal()
        limit = torch.where(count >= _MIN_HISTORY, self._log_factor, math.inf)
        moved = mean + rate * torch.minimum(excess, limit)
        self._log_mean = torch.where(value.isfinite(), moved, mean)
        self._num_averaged = count + value.isfinite()
        self._settle(wait=False)

    def take(self, *, wait: bool = False) -> list[GradientNormSpike]:
        """Return the alarms since the last call.

        Args:
            wait: Wait for the device to tell of the latest steps too.
        """
        self._settle(wait=wait)
        spikes, self._spikes = self._spikes, []
        return spikes

    def state_dict(self) -> dict[str, Any]:
        """Return what the next comparison needs, as plain numbers."""
        return {
            "num_steps": self.num_steps,
            "log_mean": float(self._log_mean),
            "num_averaged": float(self._num_averaged),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state_dict: What :meth:`state_dict` returned.
        """
        self.num_steps = state_dict["num_steps"]
        self._log_mean = torch.tensor(state_dict["log_mean"])
        self._num_averaged = torch.tensor(state_dict["num_averaged"])

    def _settle(self, *, wait: bool) -> None:
        queue = self._queue
        while queue and (wait or len(queue) > _MAX_QUEUED or queue[0].is_spike.is_ready()):
            entry = queue.popleft()
            if entry.is_spike.read():
                typical = math.exp(entry.log_mean) if entry.step else math.nan
                self._spikes.append(GradientNormSpike(entry.step, float(entry.norm), typical))

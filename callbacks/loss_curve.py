"""Judge a stretch of a training loss: is the batch too small, too large, the rate too high?

The four signs are those that practitioners read off a curve by eye; here they are numbers.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple

__all__ = ["ADVICE", "LossVerdict", "Verdict", "judge_loss_curve"]

Verdict = Literal["healthy", "jagged", "too_smooth", "plateau", "divergence"]

ADVICE: dict[Verdict, str] = {
    "healthy": "the loss falls at a usual noise; nothing is to be changed",
    "jagged": "the gradients are noisy: raise the global batch size, or lower the learning rate",
    "too_smooth": (
        "the loss falls slowly and without noise: raise the learning rate, or lower the global "
        "batch size and take more steps"
    ),
    "plateau": (
        "the loss has stopped falling: raise the learning rate or lower the global batch size if "
        "training has just begun, lower the learning rate if it is near its end"
    ),
    "divergence": (
        "the loss rises: halve the learning rate, warm it up, clip gradients (max_norm=1.0), and "
        "go on from a checkpoint before the rise"
    ),
}
_SMALLEST_WINDOW = 16
# Noise of a step relative to the loss: jagged above the first, smooth below the second.
_JAGGED, _SMOOTH = 0.3, 0.01
# Change over the window relative to the loss: below the first no fall, below the second a slow one.
_NO_FALL, _SLOW_FALL = 0.02, 0.1
_RISE = 0.2
_SIGNIFICANT = 3.0


class LossVerdict(NamedTuple):
    """Hold what a stretch of a loss curve shows.

    Attributes:
        verdict: ``"healthy"``, ``"jagged"`` (noise above 30 % of the loss), ``"too_smooth"`` (noise
            below 1 % and a fall of less than 10 %), ``"plateau"`` (a fall below 2 %, or one that
            the noise hides) or ``"divergence"`` (not finite, or a rise of more than 20 % over its
            lowest quarter that goes on).
        jaggedness: Standard deviation of the noise of one step, relative to the mean loss.
        trend: Change of the fitted line over the stretch, relative to the mean loss; negative when
            the loss falls.
    """

    verdict: Verdict
    jaggedness: float
    trend: float

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.verdict]


def judge_loss_curve(losses: Sequence[float]) -> LossVerdict:
    """Judge the last losses of a training.

    Numbers are relative to the mean absolute loss, so the loss should have its floor near 0.

    Args:
        losses: One number per optimizer step, in order, at least 16; some 200 are a good window.

    Returns:
        The verdict.

    Raises:
        ValueError: There are fewer than 16.

    Example:
        >>> judge_loss_curve([1.0] * 50).verdict
        'plateau'
    """
    if len(losses) < _SMALLEST_WINDOW:
        raise ValueError(
            f"losses = {len(losses)} numbers; at least {_SMALLEST_WINDOW} are needed; some 200 are "
            "a good window"
        )
    losses = list(losses)
    if not all(map(math.isfinite, losses)):
        return LossVerdict("divergence", math.nan, math.nan)
    level = fmean(map(abs, losses)) or 1.0
    # Of differences between neighbours, so that the fall itself does not count as noise.
    steps = [second - first for first, second in pairwise(losses)]
    noise = math.sqrt(fmean(step * step for step in steps) / 2)
    slope, spread = _fit_line(losses)
    trend = slope * (len(losses) - 1) / level
    is_falling = slope < -_SIGNIFICANT * noise / spread
    jaggedness = noise / level
    return LossVerdict(_verdict(losses, noise, jaggedness, trend, is_falling), jaggedness, trend)


def _verdict(
    losses: Sequence[float], noise: float, jaggedness: float, trend: float, is_falling: bool
) -> Verdict:
    if _rises(losses, noise):
        return "divergence"
    if jaggedness > _JAGGED:
        return "jagged"
    if not is_falling or trend > -_NO_FALL:
        return "plateau"
    if jaggedness < _SMOOTH and trend > -_SLOW_FALL:
        return "too_smooth"
    return "healthy"


def _rises(losses: Sequence[float], noise: float) -> bool:
    """Tell whether the loss has risen well above its lowest quarter and goes on rising."""
    size = len(losses) // 4
    quarters = [fmean(losses[start * size : (start + 1) * size]) for start in range(3)]
    quarters.append(fmean(losses[-size:]))
    lowest = min(quarters)
    has_risen = quarters[3] - lowest > _RISE * abs(lowest)
    slope, spread = _fit_line(losses[len(losses) // 2 :])
    return has_risen and quarters[3] > quarters[2] and slope > _SIGNIFICANT * noise / spread


def _fit_line(values: Sequence[float]) -> tuple[float, float]:
    """Return the least-squares slope per step, and the square root of the sum of squared steps."""
    center, mean = (len(values) - 1) / 2, fmean(values)
    square = sum((index - center) ** 2 for index in range(len(values)))
    slope = sum((index - center) * (value - mean) for index, value in enumerate(values)) / square
    return slope, math.sqrt(square)

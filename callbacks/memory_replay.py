"""Go through the allocations of a training step again, when it is known what each was for."""

from collections import Counter

from lightning_mp.callbacks.memory_report import Category, Maximum, MemoryReport, Peak

__all__ = ["MemoryReplay"]


class MemoryReplay:
    """Add up memory, and keep its highest points."""

    def __init__(self) -> None:
        self._now: Counter[Category] = Counter()
        self._num_bytes = 0
        self._fixed_bytes = 0
        self._is_rising = False
        self._is_in_step = False
        self._peaks = {False: Peak(0, {}), True: Peak(0, {})}
        self._maxima: list[Maximum] = []

    def move(self, num_bytes: int, category: Category, is_fixed: bool) -> None:
        """Take one allocation, or one that is freed.

        Args:
            num_bytes: Its bytes, negative when it is freed.
            category: What it is for.
            is_fixed: Whether its size does not depend on the batch.
        """
        if num_bytes < 0:
            self._keep_maximum()
        self._is_rising = num_bytes >= 0
        self._now[category] += num_bytes
        self._num_bytes += num_bytes
        self._fixed_bytes += num_bytes if is_fixed else 0

    def enter_phase(self, *, is_in_step: bool) -> None:
        """Begin the optimizer step, or forward and backward.

        Args:
            is_in_step: Whether it is the optimizer step.
        """
        self._keep_maximum()
        self._is_in_step = is_in_step
        self._is_rising = True

    def report(self, batch_size: int, activation_bytes: dict[str, int]) -> MemoryReport:
        """Return what was found.

        Args:
            batch_size: Samples in the batch of this device.
            activation_bytes: Activations by module.
        """
        self._keep_maximum()
        return MemoryReport(
            batch_size,
            self._peaks[False],
            self._peaks[True],
            activation_bytes,
            tuple(self._maxima),
        )

    def _keep_maximum(self) -> None:
        # Only where memory begins to fall: on the way up every allocation would be one.
        if not self._is_rising:
            return
        self._is_rising = False
        self._maxima.append(Maximum(self._num_bytes, self._fixed_bytes))
        if self._num_bytes > self._peaks[self._is_in_step].num_bytes:
            parts: dict[Category, int] = {name: size for name, size in self._now.items() if size}
            self._peaks[self._is_in_step] = Peak(self._num_bytes, parts)

"""The place of a run within its epochs."""

from dataclasses import dataclass

__all__ = ["EpochPosition"]


@dataclass(frozen=True)
class EpochPosition:
    """Says where in the run a batch sampler starts.

    Args:
        epoch: Index of the epoch, which also seeds its order.
        num_samples_before: Samples over all ranks that were consumed before the epoch.
        num_batches_done: Batches of the epoch that were trained already.
    """

    epoch: int = 0
    num_samples_before: int = 0
    num_batches_done: int = 0

"""A sampler whose order depends on the seed and the epoch only."""

import hashlib
import random
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

__all__ = ["EpochSampler"]


class EpochSampler(Sampler[Any]):
    """Draws the order of any sized sampler as a pure function of (seed, epoch).

    The order is drawn with the random generators of torch (CPU), NumPy and Python seeded for the
    epoch and put back afterwards, so samplers that use them, with or without replacement and with
    or without a ``generator`` of their own, repeat an epoch exactly. A sampler that has
    ``set_epoch`` is told the epoch first.

    Args:
        sampler: The sampler to draw from; must have a length.
        seed: Seed of the orders.
        rank: Rank of this process. Ranks get different orders from torch's own random samplers,
            which do not shard; every other sampler is drawn alike on all ranks.
        on_epoch: Called with the epoch at each `set_epoch`.

    Raises:
        TypeError: The sampler has no length.

    Example:
        >>> from torch.utils.data import SequentialSampler
        >>> EpochSampler(SequentialSampler(range(3))).draw(epoch=0)
        [0, 1, 2]
    """

    def __init__(
        self,
        sampler: Any,
        *,
        seed: int = 0,
        rank: int = 0,
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        if not isinstance(sampler, Sized):
            raise TypeError(
                f"sampler = {type(sampler).__name__} has no length; a scheduled batch size needs "
                "the number of samples of an epoch; give the sampler a __len__"
            )
        self.sampler: Any = sampler
        self.seed = seed
        self.epoch = 0
        self._rank = rank if isinstance(sampler, _UNSHARDED_SAMPLERS) else 0
        self._on_epoch = on_epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.draw(self.epoch))

    def set_epoch(self, epoch: int) -> None:
        """Take the epoch that begins, as DistributedSampler does.

        Args:
            epoch: Index of the epoch.
        """
        self.epoch = epoch
        if self._on_epoch is not None:
            self._on_epoch(epoch)

    def draw(self, epoch: int, pass_index: int = 0) -> list[Any]:
        """Return the order of one pass.

        Args:
            epoch: Index of the epoch.
            pass_index: 0, or the number of earlier passes in the same epoch.

        Returns:
            The indices, ``len(self)`` of them.

        Raises:
            RuntimeError: The sampler gives fewer indices than its length says.
        """
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        with ExitStack() as stack:
            seed = _mix_seeds(self.seed, epoch, pass_index, self._rank)
            stack.enter_context(_seeded(seed))
            for sampler in (self.sampler, _unwrap(self.sampler)):
                stack.enter_context(_seeded_generator(sampler, seed))
            order = list(islice(iter(self.sampler), len(self)))
        if len(order) < len(self):
            raise RuntimeError(
                f"{type(self.sampler).__name__} gave {len(order)} indices; its length says "
                f"{len(self)}; correct the sampler's __len__"
            )
        return order


_UNSHARDED_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def _mix_seeds(*seeds: int) -> int:
    digest = hashlib.blake2b(repr(seeds).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _unwrap(sampler: Any) -> Any:
    # Lightning's DistributedSamplerWrapper keeps the user's sampler behind a dataset.
    return getattr(getattr(sampler, "dataset", None), "_sampler", None)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    # Not torch.manual_seed: that would seed the devices as well.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def _seeded_generator(sampler: Any, seed: int) -> Iterator[None]:
    original: Any = getattr(sampler, "generator", None)
    if not isinstance(original, torch.Generator):
        yield
        return
    generator = torch.Generator(original.device)
    sampler.generator = generator.manual_seed(_mix_seeds(seed, original.initial_seed()))
    try:
        yield
    finally:
        sampler.generator = original

"""Put a batch sampler into the training loaders of a Trainer, and take it out again."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.utils.data import Sampler

from lightning_mp.lightning_api import Trainer

__all__ = ["TrainLoaderHook"]

BatchSampler = TypeVar("BatchSampler", bound=Sampler[list[Any]])


class TrainLoaderHook(Generic[BatchSampler]):
    """Replaces the batch sampler of every training loader that the Trainer sets up.

    It wraps ``strategy.process_dataloader``, which Lightning calls after it has injected its
    samplers and before it makes the iterator, at each (re)load. The loader object stays the
    user's, so subclasses and persistent workers keep working.

    Args:
        trainer: Trainer whose strategy is wrapped, by `install`.
        make_batch_sampler: Returns the batch sampler for a loader, or raises if it cannot have one.
            It sees the loader with its own batch sampler in place.
        on_load: Called with the batch sampler each time its loader is (re)loaded.
    """

    def __init__(
        self,
        trainer: Trainer,
        make_batch_sampler: Callable[[Any], BatchSampler],
        on_load: Callable[[BatchSampler], None],
    ) -> None:
        self._trainer = trainer
        self._make_batch_sampler = make_batch_sampler
        self._on_load = on_load
        # Weak: loaders that are reloaded each epoch would pile up otherwise, with their data.
        self._replaced: list[tuple[weakref.ref[Any], Any, BatchSampler]] = []
        self._attribute: Any = None

    def install(self) -> None:
        """Wrap the strategy's method."""
        strategy = self._trainer.strategy
        self._attribute = vars(strategy).get("process_dataloader")
        process = strategy.process_dataloader

        def process_dataloader(dataloader: object) -> object:
            if self._trainer.training:
                self._replace(dataloader)
            return process(dataloader)

        setattr(strategy, "process_dataloader", process_dataloader)  # noqa: B010 (a method)

    def remove(self) -> None:
        """Give the strategy its method and the loaders their batch samplers back."""
        strategy = self._trainer.strategy
        if self._attribute is None:
            vars(strategy).pop("process_dataloader", None)
        else:
            setattr(strategy, "process_dataloader", self._attribute)  # noqa: B010 (a method)
        for reference, original, _ in self._replaced:
            if (loader := reference()) is not None:
                _set_batch_sampler(loader, original)
        self._replaced.clear()

    def _replace(self, loader: Any) -> None:
        self._replaced = [entry for entry in self._replaced if entry[0]() is not None]
        # A loader that comes again keeps its sampler: persistent workers' iterators hold on to it.
        known = [entry[2] for entry in self._replaced if entry[0]() is loader]
        batch_sampler = known[0] if known else self._make_batch_sampler(loader)
        if not known:
            self._replaced.append((weakref.ref(loader), loader.batch_sampler, batch_sampler))
            _set_batch_sampler(loader, batch_sampler)
        self._on_load(batch_sampler)


def _set_batch_sampler(loader: Any, batch_sampler: Any) -> None:
    # DataLoader refuses plain assignment after its construction.
    object.__setattr__(loader, "batch_sampler", batch_sampler)

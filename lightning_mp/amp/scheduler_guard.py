"""Learning-rate schedulers that hold while their optimizer skips.

torch warns, and the rate moves for nothing, when a scheduler steps after a skipped optimizer step.
The guard is a subclass put in place of the scheduler's class: an attribute on the instance would
end up in the scheduler's state dict.
"""

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from lightning_mp.amp.skip_ledger import SkipLedger

__all__ = ["SchedulerGuard"]


class SchedulerGuard:
    """Make a scheduler's ``step`` do nothing if its optimizer took no step since the last call.

    Args:
        scheduler: A torch scheduler, or any object with ``step``.
        ledger: Ledger of the optimizer that the scheduler belongs to.
    """

    def __init__(self, scheduler: Any, ledger: SkipLedger) -> None:
        self._scheduler = scheduler
        self._original = type(scheduler)
        scheduler.__class__ = _guarded_class(self._original, ledger)

    def remove(self) -> None:
        """Give the scheduler its own class back."""
        self._scheduler.__class__ = self._original


def _guarded_class(cls: type[LRScheduler], ledger: SkipLedger) -> type[LRScheduler]:
    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        if not ledger.holds():
            cls.step(self, *args, **kwargs)

    def reduce(self: Any, protocol: int) -> Any:
        # A copy made by pickle or deepcopy is an ordinary scheduler.
        # Protocol 1: in the form of the later ones pickle wants the object's own class.
        constructor, arguments, *rest = cls.__reduce_ex__(self, 1)
        plain = [cls if item is type(self) else item for item in (constructor, *arguments)]
        return (plain[0], tuple(plain[1:]), *rest)

    namespace = {
        "step": step,
        "__reduce_ex__": reduce,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    return type(cls.__name__, (cls,), namespace)

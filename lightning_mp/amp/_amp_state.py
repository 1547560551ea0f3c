"""The one registry of the Apex API, under the names that existing code reaches into."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning_mp.amp.amp_session import AmpSession
    from lightning_mp.amp.apex_scaler import ApexScaler

__all__ = ["AmpState", "master_params", "maybe_print"]


class AmpState:
    """Hold what ``amp.initialize`` and ``amp.init`` have set up.

    Attributes:
        session: What the last ``initialize`` set up; ``None`` before it.
        handle: What the last ``init`` returned, while its casts are on; else the handle of the last
            ``initialize`` at O1, or ``None``.
        half_dtype: Half dtype of later set-ups, see ``amp.set_half_dtype``.
        allow_incoming_model_not_fp32: Accept half models in ``initialize``.
        verbosity: 0 prints nothing, 1 the start and the overflows, 2 more.
    """

    def __init__(self) -> None:
        self.session: AmpSession | None = None
        self._sessions: WeakKeyDictionary[Optimizer, Callable[[], AmpSession | None]] = (
            WeakKeyDictionary()
        )
        self.handle: Any = None
        self.half_dtype = torch.float16
        self.allow_incoming_model_not_fp32 = False
        self.verbosity = 1

    def add(self, session: "AmpSession", optimizers: Iterable[Optimizer]) -> None:
        """Note a set-up as the last one, and as that of its optimizers.

        Args:
            session: The set-up.
            optimizers: The optimizers.
        """
        self.session = session
        for optimizer in optimizers:
            # Weakly, or neither would ever go: a set-up holds its optimizers, and they hold it.
            # One that is off holds nothing and is held by nothing.
            is_off = session.engine is None
            self._sessions[optimizer] = (lambda: session) if is_off else ref(session)

    def session_of(self, optimizer: Any) -> "AmpSession | None":
        """Return the set-up of an optimizer, ``None`` if it has none.

        Args:
            optimizer: Any object.
        """
        found = self._sessions.get(optimizer) if isinstance(optimizer, Optimizer) else None
        return None if found is None else found()

    @property
    def loss_scalers(self) -> "list[ApexScaler]":
        """The scaler of each loss of the last ``initialize``; empty if mixed precision is off.

        Raises:
            AttributeError: ``initialize`` was not called.
        """
        return self._session_with("loss_scalers").loss_scalers

    @property
    def opt_properties(self) -> Any:
        """The properties that the last ``initialize`` resolved.

        Raises:
            AttributeError: ``initialize`` was not called.
        """
        return self._session_with("opt_properties").properties

    def _session_with(self, name: str) -> "AmpSession":
        if self.session is None:
            raise AttributeError(
                f"amp._amp_state has no {name} yet; call amp.initialize(model, optimizer, "
                "opt_level=...) first"
            )
        return self.session


def maybe_print(message: str, rank0: bool = False) -> None:
    """Print a message unless ``_amp_state.verbosity`` is 0.

    Args:
        message: The message.
        rank0: Whether to print in the first process only.
    """
    if _amp_state.verbosity == 0:
        return
    group = torch.distributed
    if rank0 and group.is_available() and group.is_initialized() and group.get_rank() != 0:
        return
    print(message)


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield what an optimizer updates: FP32 masters, and parameters that have none.

    Split masters hold a gradient like others, but their values only while the optimizer steps.

    Args:
        optimizer: An optimizer that ``amp.initialize`` returned.

    Yields:
        Each tensor of its parameter groups, in order.

    Raises:
        TypeError: It is no optimizer.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"master_params of {type(optimizer).__name__}; allowed: an optimizer; write "
            "amp.master_params(optimizer)"
        )
    for group in optimizer.param_groups:
        yield from group["params"]


_amp_state = AmpState()

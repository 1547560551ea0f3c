"""The old, handle-based API of Apex: ``amp.init()``, casts everywhere, no model handed in."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import _amp_state
from lightning_mp.amp.amp_session import AmpSession
from lightning_mp.amp.apex_arguments import check_are_optimizers, parse_num_losses
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.function_casts import FunctionCasts, disable_casts
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.opt_levels import resolve_opt_level
from lightning_mp.amp.optimizer_wrapper import OptimizerWrapper

__all__ = ["AmpHandle", "init"]


class AmpHandle:
    """Keep the casts of O1 on in the calling thread, and scale losses.

    Args:
        casts: The casts; ``None`` if mixed precision is off.
        loss_scale: ``"dynamic"`` or a fixed scale.
        enable_caching: What ``has_cache`` tells.
        verbose: Whether more is printed.

    Example:
        >>> handle = init(loss_scale=1.0)
        >>> nn.functional.linear(*(nn.Parameter(Tensor(3, 3)) for _ in range(2))).dtype
        torch.float16
        >>> handle._deactivate()
    """

    def __init__(
        self,
        casts: FunctionCasts | None,
        *,
        loss_scale: float | Literal["dynamic"] | str = "dynamic",
        enable_caching: bool = True,
        verbose: bool = False,
    ) -> None:
        self.verbose = verbose
        self.has_cache = enable_caching and casts is not None
        self._casts = casts
        self._loss_scale = loss_scale
        self._region: AbstractContextManager[None] | None = None
        self._thread: threading.Thread | None = None
        self._session = self.new_session(1)

    def is_active(self) -> bool:
        """Tell whether the casts are on."""
        return self._casts is not None and self._casts.is_active()

    @property
    def is_region_open(self) -> bool:
        """Whether this handle has switched the casts on for a whole thread."""
        return self._region is not None

    @contextmanager
    def scale_loss(self, loss: Tensor, optimizer: Optimizer) -> Iterator[Tensor]:
        """Surround the backward of a loss, as ``amp.scale_loss`` does.

        Args:
            loss: Scalar loss.
            optimizer: Optimizer of its parameters.

        Yields:
            The scaled loss.

        Raises:
            TypeError: The loss is no tensor, or the optimizer is none.
        """
        with self._session.scale_loss(
            loss, [optimizer], loss_id=0, delay_unscale=False, delay_overflow_check=False
        ) as scaled_loss:
            yield scaled_loss

    def wrap_optimizer(self, optimizer: Optimizer, num_loss: int = 1) -> OptimizerWrapper:
        """Give an optimizer a ``scale_loss`` of its own, with one scaler per loss.

        Args:
            optimizer: A torch optimizer.
            num_loss: Number of losses that are scaled before each step.

        Returns:
            What stands in for the optimizer.

        Raises:
            TypeError: It is no optimizer.
            ValueError: ``num_loss`` is no positive int.
        """
        if self._casts is not None:
            check_are_optimizers([optimizer])
        return OptimizerWrapper(optimizer, self.new_session(parse_num_losses(num_loss)))

    def new_session(self, num_losses: int) -> AmpSession:
        """Set up loss scalers without models.

        Args:
            num_losses: Number of scalers.
        """
        if self._casts is None:
            return AmpSession(None)
        properties = resolve_opt_level("O0", loss_scale=self._loss_scale)
        scalers = [LossScaler(properties.loss_scale) for _ in range(num_losses)]
        engine = AmpEngine(properties, scalers)
        engine.convert(nn.Module())
        return AmpSession(engine)

    def activate(self) -> None:
        """Switch the casts on in this thread, until :meth:`_deactivate`."""
        if self._casts is not None and self._region is None:
            self._region, self._thread = self._casts.context(), threading.current_thread()
            self._region.__enter__()

    def _clear_cache(self) -> None:
        if self._casts is not None:
            self._casts.clear_cache()

    def _disable_casts(self) -> AbstractContextManager[Any]:
        return disable_casts()

    def _deactivate(self) -> None:
        region, thread = self._region, self._thread
        if self._casts is None or region is None or thread is None:
            return
        if thread is not threading.current_thread():
            if thread.is_alive():
                raise RuntimeError(
                    f"casts of amp.init() = on in the thread {thread.name!r}; allowed: to switch "
                    "them off in that thread; call the handle's _deactivate() there"
                )
            self._casts.abandon()
            _OF_DEAD_THREADS.append(region)
        elif not self.is_active():
            raise RuntimeError(
                "handle._deactivate() where its casts are not on; allowed: outside of "
                "amp.disable_casts(); leave that block first"
            )
        else:
            region.__exit__(None, None, None)
        self._region = None


# Never ended: an end changes the state of the thread that it happens in.
_OF_DEAD_THREADS: list[AbstractContextManager[None]] = []


def init(
    enabled: bool = True,
    loss_scale: float | Literal["dynamic"] | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> AmpHandle:
    """Switch the casts of O1 on for all that the calling thread does from now on.

    ``initialize(opt_level="O1")`` confines them to the forward of the models handed in and is to be
    preferred. The handle's ``_deactivate()`` switches them off again; a second call replaces the
    first.

    Args:
        enabled: ``False`` returns a handle that does nothing.
        loss_scale: ``"dynamic"`` or a fixed scale.
        enable_caching: Kept for old code.
        verbose: Kept for old code.
        allow_banned: Whether banned functions run in float32 instead of being refused.

    Returns:
        The handle.

    Raises:
        ValueError: ``loss_scale`` is none.
        RuntimeError: The casts are on in another thread.
    """
    half_dtype = _amp_state.half_dtype
    casts = None
    if enabled:
        casts = FunctionCasts(half_dtype, allow_banned=allow_banned, is_lasting=True)
    handle = AmpHandle(casts, loss_scale=loss_scale, enable_caching=enable_caching, verbose=verbose)
    if isinstance(_amp_state.handle, AmpHandle):
        _amp_state.handle._deactivate()
    handle.activate()
    _amp_state.handle = handle
    return handle

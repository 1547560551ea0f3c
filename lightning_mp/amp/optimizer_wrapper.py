"""An optimizer of the handle-based API, which scales its own losses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp.amp_session import AmpSession

__all__ = ["OptimizerWrapper"]


class OptimizerWrapper:
    """Stand in for an optimizer; everything but ``scale_loss`` goes to it.

    Args:
        optimizer: The optimizer.
        session: The loss scalers, one per loss.
    """

    def __init__(self, optimizer: Optimizer, session: AmpSession) -> None:
        self._optimizer = optimizer
        self._session = session
        self._num_losses_scaled = 0

    @contextmanager
    def scale_loss(self, loss: Tensor) -> Iterator[Tensor]:
        """Surround the backward of the next of the losses, which come in the same order each step.

        Args:
            loss: Scalar loss.

        Yields:
            The scaled loss.

        Raises:
            RuntimeError: There were more losses since the last step than scalers.
            TypeError: The loss is no tensor.
        """
        loss_id = self._num_losses_scaled
        num_scalers = len(self._session.loss_scalers)
        if self._session.engine is not None and loss_id >= num_scalers:
            raise RuntimeError(
                f"scale_loss was called {loss_id + 1} times since the last step; allowed: "
                f"{num_scalers}; call handle.wrap_optimizer(optimizer, num_loss={loss_id + 1})"
            )
        with self._session.scale_loss(
            loss,
            [self._optimizer],
            loss_id=loss_id,
            delay_unscale=False,
            delay_overflow_check=False,
        ) as scaled_loss:
            yield scaled_loss
        self._num_losses_scaled += 1

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer, unless a gradient is not finite.

        Args:
            closure: As for the optimizer.
        """
        self._num_losses_scaled = 0
        return self._optimizer.step() if closure is None else self._optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        # What copies an object asks for names before there is anything in it.
        if "_optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._optimizer, name)

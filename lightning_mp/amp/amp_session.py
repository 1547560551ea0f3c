"""What one ``amp.initialize`` has set up: an engine, its optimizers and its loss scalers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import maybe_print
from lightning_mp.amp.apex_properties import ApexProperties
from lightning_mp.amp.apex_scaler import ApexScaler
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.amp.owned_optimizer import OwnedOptimizer

__all__ = ["AmpSession"]


class AmpSession:
    """Run the backwards of one set-up.

    Args:
        engine: Engine with the models converted; ``None`` if mixed precision is off.

    Attributes:
        properties: The resolved properties.
        loss_scalers: The scaler of each loss.
    """

    def __init__(self, engine: AmpEngine | None) -> None:
        self.engine = engine
        self.properties = ApexProperties(None if engine is None else engine.properties)
        scalers = () if engine is None else engine.scalers
        self.loss_scalers = [ApexScaler(scaler) for scaler in scalers]
        # Overflows that the device has not told of yet: flag, scaler, scale after it.
        self._unprinted: list[tuple[HostFlag, int, Tensor]] = []

    @contextmanager
    def scale_loss(
        self,
        loss: Tensor,
        optimizers: Sequence[Optimizer],
        *,
        loss_id: int,
        delay_unscale: bool,
        delay_overflow_check: bool,
    ) -> Iterator[Tensor]:
        """Yield the scaled loss; unscale the gradients of its backward at the end.

        Args:
            loss: Scalar loss.
            optimizers: Optimizers whose gradients the backward makes.
            loss_id: Index of the loss's scaler.
            delay_unscale: Leave the gradients scaled for a later backward of the same loss.
            delay_overflow_check: Let the scale move at a later backward only.

        Yields:
            The loss in FP32, times the scale.
        """
        engine = self.engine
        if engine is None:
            yield loss
            return
        scaler = engine.scalers[loss_id]
        scaler.to(loss.device)
        owned = [engine.own(optimizer) for optimizer in optimizers]
        for item in owned:
            item.open_window(scaler)
        try:
            # Activation checkpointing runs parts of the forward again in here.
            with engine.forward_context():
                yield scaler.scale_loss(loss)
        except BaseException:
            for item in owned:
                item.abandon_window()
            raise
        if not delay_unscale:
            self._close(owned, loss_id, is_final=not delay_overflow_check)

    def print_overflows(self, *, wait: bool = False) -> None:
        """Print a line for each overflow that the device has told of since the last call.

        Args:
            wait: Wait for the device to tell of the latest backwards too.
        """
        while self._unprinted and (wait or self._unprinted[0][0].is_ready()):
            flag, loss_id, scale = self._unprinted.pop(0)
            if not flag.read():
                continue
            # The wording that existing log scrapers look for.
            maybe_print(
                f"Gradient overflow.  Skipping step, loss scaler {loss_id} "
                + (
                    f"reducing loss scale to {scale.item()}"
                    if self.loss_scalers[loss_id].dynamic
                    else f"keeping its static loss scale of {scale.item()}"
                )
            )

    def _close(self, owned: Sequence[OwnedOptimizer], loss_id: int, *, is_final: bool) -> None:
        scaler = self.loss_scalers[loss_id].scaler
        checks = [item.close_window() for item in owned]
        found = [check for check in checks if check is not None and check.has_gradients]
        if found:
            scaler.record(_any_overflow(found))
        if not is_final or not scaler.has_pending:
            return
        flag = scaler.pending_overflow
        scaler.update()
        self._unprinted.append((HostFlag(flag), loss_id, scaler.scale))
        self.print_overflows()


def _any_overflow(checks: Sequence[GradientCheck]) -> Tensor:
    total = checks[0].found_inf
    for check in checks[1:]:
        total = total + check.found_inf.to(total.device, non_blocking=True)
    return total

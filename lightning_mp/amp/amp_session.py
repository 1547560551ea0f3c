"""What one ``amp.initialize`` has set up: an engine, its optimizers and its loss scalers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.amp._amp_state import maybe_print
from lightning_mp.amp.apex_arguments import check_scaled
from lightning_mp.amp.apex_properties import ApexProperties
from lightning_mp.amp.apex_scaler import ApexScaler
from lightning_mp.amp.engine import AmpEngine
from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.host_flag import HostFlag

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
        if engine is not None:
            engine.own([]).keeps = self
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

        Raises:
            TypeError: The loss is no tensor, or an optimizer is none.
            ValueError: There is no optimizer.
            IndexError: There is no such scaler.
        """
        engine = self.engine
        if engine is None:
            yield loss
            return
        check_scaled(loss, optimizers, loss_id, len(self.loss_scalers))
        scaler = engine.scalers[loss_id]
        backwards = engine.own(optimizers)
        window = backwards.window(loss, scaler, optimizers, delay_unscale=delay_unscale)
        with window as (scaled_loss, backward), engine.forward_context():
            # Activation checkpointing runs parts of the forward again in here.
            yield scaled_loss
        scale = scaler.scale
        if backward.is_put_off:
            # Scales stay equal over processes: what is found now is found again at the exchange.
            return
        self._record(backward.check, loss_id, is_final=not delay_overflow_check)
        if not delay_unscale:
            backwards.note_scales(optimizers, scale, scaler.next_scale)

    def print_overflows(self) -> None:
        """Print a line for each overflow that the device has told of since the last call."""
        while self._unprinted and self._unprinted[0][0].is_ready():
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

    def _record(self, check: GradientCheck | None, loss_id: int, *, is_final: bool) -> None:
        scaler = self.loss_scalers[loss_id].scaler
        if check is not None and check.has_gradients:
            scaler.record(check.found_inf)
        if check is None or not is_final or not scaler.has_pending:
            return
        flag = scaler.pending_overflow
        scaler.update()
        self._unprinted.append((HostFlag(flag), loss_id, scaler.scale))
        self.print_overflows()

"""The window around one backward under one loss scaler.

On entry the gradients that are there already are put aside, so that autograd writes fresh ones; on
exit the fresh ones are checked, unscaled into FP32 and added to what was put aside. So losses with
scales of their own, and scales that move between two micro-batches, are summed right.

Where the backward is left scaled on purpose (``delay_unscale``), autograd adds to what is there,
which has the same scale: gradients that are averaged over processes later must stand at the
parameter then. So must those of backwards under DDP's ``no_sync``, when the exchange comes.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from lightning_mp.amp.chunks import in_chunks
from lightning_mp.amp.gradient_check import GradientCheck, dense_values
from lightning_mp.amp.gradient_raise import widened
from lightning_mp.amp.gradient_stats import measure_gradients
from lightning_mp.amp.gradient_unscale import unscale_gradients
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.shared_gradients import SharedGradients

__all__ = ["ScaledBackward"]


class ScaledBackward:
    """Open a window at once; close it with :meth:`close` or :meth:`abandon`.

    Args:
        parameters: Model parameters whose gradients the backward may write.
        gradients: Where their gradients stand.
        scaler: Scaler of the loss.
        names: Qualified name of each parameter.
        delay_unscale: Leave the gradients scaled for a later window of the same loss.
        kept_scaled: Parameters whose gradients are checked but stay scaled, for a step to unscale.
        due: Those of the parameters whose earlier gradients this backward averages over processes
            together with the fresh ones.
        is_put_off: Whether fresh gradients wait for a later backward to be averaged.

    Attributes:
        check: What was found in the fresh gradients; None before the end and after a delayed one.
        is_put_off: As passed. Other processes may have found something else then.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: SharedGradients,
        scaler: LossScaler,
        *,
        names: Mapping[Tensor, str],
        delay_unscale: bool = False,
        kept_scaled: Sequence[Tensor] = (),
        due: Collection[Tensor] = (),
        is_put_off: bool = False,
    ) -> None:
        self.is_put_off = is_put_off
        self._due = due
        self.check: GradientCheck | None = None
        self._parameters = list(parameters)
        self._gradients = gradients
        self._scaler = scaler
        self._names = names
        self._delay_unscale = delay_unscale
        self._kept_scaled = set(kept_scaled)
        self._before = [(item.grad, gradients.target_of(item).grad) for item in self._parameters]
        self._scales = [gradients.scale_of(item) for item in self._parameters]
        self._aside: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def begin(self, loss: Tensor) -> Tensor:
        """Put the gradients aside and scale the loss.

        Args:
            loss: The loss, of any floating dtype.

        Returns:
            The loss in FP32, times the scale.
        """
        with torch.enable_grad():
            scaled = self._scaler.scale_loss(loss)
        for parameter, scale in zip(self._parameters, self._scales, strict=True):
            gradient = self._gradients.of(parameter)
            if gradient is None:
                parameter.grad = None
            elif scale is not None:
                # A copy: autograd adds to it, and an exception must find the old one as it was.
                parameter.grad = self._rescaled(gradient, scale)
            elif self._delay_unscale or parameter in self._due or parameter in self._kept_scaled:
                parameter.grad = _times(widened(gradient), self._scaler.scale)
            else:
                # DDP writes to the memory of a view into its buckets again.
                is_bucket = not gradient.is_sparse and gradient._is_view()
                self._aside[parameter] = gradient.clone() if is_bucket else gradient
                parameter.grad = None
            if parameter in self._due and parameter.grad is not None:
                # In the dtype of DDP's buckets: an FP32 sum is rounded once, before the exchange.
                parameter.grad = parameter.grad.to(parameter.dtype)
        return scaled

    @torch.no_grad()
    def close(self) -> GradientCheck | None:
        """Check, unscale and add the fresh gradients.

        Returns:
            What was found, None if nothing was looked at: the gradients stay scaled.
        """
        fresh = [item for item in self._parameters if item.grad is not None]
        if self._delay_unscale:
            for parameter in self._parameters:
                self._gradients.put(parameter, parameter.grad, scale=self._scaler.scale)
            return None
        kept = [item for item in fresh if item in self._kept_scaled]
        raised = [item for item in fresh if item not in self._kept_scaled]
        # A sum with what was put aside is another gradient than the one that was looked at.
        as_seen = [item for item in fresh if item not in self._aside]
        flags = [self._unscale(chunk) for chunk in in_chunks(raised)]
        if kept:
            flags.append(measure_gradients([dense_values(item) for item in kept]).flags)
        for parameter in kept:
            self._gradients.put(parameter, parameter.grad, scale=self._scaler.scale)
        for parameter in self._parameters:
            if parameter.grad is None:
                self._gradients.put(parameter, self._aside.get(parameter))
        self._aside.clear()
        self.check = GradientCheck([*raised, *kept], self._names, flags=_joined(flags))
        self._gradients.note_check(as_seen, self.check)
        return self.check

    @torch.no_grad()
    def abandon(self) -> None:
        """Give back the gradients from before."""
        for index, parameter in enumerate(self._parameters):
            gradient, of_target = self._before[index]
            target = self._gradients.target_of(parameter)
            parameter.grad = gradient
            if target is not parameter:
                target.grad = of_target
        self._aside.clear()

    def _rescaled(self, gradient: Tensor, scale: Tensor) -> Tensor:
        if scale is self._scaler.scale:
            return gradient.clone()
        # The scale moved, or the loss is another: in FP32, where nothing overflows by it.
        return _times(widened(gradient), self._scaler.scale.to(scale.device) / scale)

    def _unscale(self, parameters: list[Tensor]) -> Tensor:
        inv_scale = None if self._scaler.is_identity else self._scaler.inv_scale
        flags = unscale_gradients(parameters, self._gradients.masters, inv_scale)
        for parameter in parameters:
            aside, fresh = self._aside.pop(parameter, None), parameter.grad
            assert fresh is not None
            self._gradients.put(parameter, fresh if aside is None else _sum(aside, fresh))
        return flags


def _sum(total: Tensor, gradient: Tensor) -> Tensor:
    total = widened(total)
    if total.is_sparse and gradient.is_sparse:
        return (total + gradient).coalesce()
    if total.is_sparse:
        return gradient.add_(total)
    return total.add_(gradient)


def _joined(flags: Sequence[Tensor]) -> Tensor:
    if not flags:
        return torch.zeros(0)
    device = flags[0].device
    return torch.cat([item.to(device, non_blocking=True) for item in flags])


def _times(gradient: Tensor, factor: Tensor) -> Tensor:
    return gradient * factor.to(gradient.device)

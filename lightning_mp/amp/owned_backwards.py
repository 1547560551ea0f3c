"""Backwards and steps where the optimizers own the masters: one window at a time, one log."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.amp.gradient_check import GradientCheck
from lightning_mp.amp.gradient_exchange import GradientExchange
from lightning_mp.amp.loss_scaler import LossScaler
from lightning_mp.amp.master_weights import MasterWeights
from lightning_mp.amp.overflow_log import OverflowLog
from lightning_mp.amp.owned_optimizer import OwnedOptimizer
from lightning_mp.amp.scaled_backward import ScaledBackward
from lightning_mp.amp.shared_gradients import SharedGradients
from lightning_mp.amp.unscaled_gradients import UnscaledGradients

__all__ = ["OwnedBackwards"]


class OwnedBackwards:
    """Follow the optimizers that own masters, and run the backwards that make their gradients.

    Args:
        masters: Masters of the models.
        names: Qualified name of each model parameter.
        log: Where steps are noted.
        is_fusing: Whether the step of a known optimizer is replaced by a fused one.

    Attributes:
        keeps: An object that is to live as long as the optimizers do.
    """

    def __init__(
        self,
        masters: MasterWeights,
        names: Mapping[Tensor, str],
        log: OverflowLog,
        *,
        is_fusing: bool = True,
    ) -> None:
        self.keeps: object = None
        self.skipped_steps = torch.zeros((), dtype=torch.int32)
        self._gradients = SharedGradients(masters, UnscaledGradients(), is_shared=True)
        self._names = names
        self._log = log
        self._is_fusing = is_fusing
        self._owned: dict[Optimizer, OwnedOptimizer] = {}
        self._num_steps: dict[Optimizer, int] = {}
        # Of the last backward that was unscaled for an optimizer: its scale, and the next one.
        self._scales: dict[Optimizer, tuple[Tensor, Tensor]] = {}
        self._is_open = False
        self._exchange = GradientExchange()

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Follow which gradients DDP has yet to average over processes.

        Args:
            modules: The models, which may be wrapped later.
        """
        self._exchange.watch(modules)

    def own(self, optimizer: Optimizer) -> OwnedOptimizer:
        """Let an optimizer hold the masters for good; its owner calls its ``step``.

        Args:
            optimizer: A torch optimizer over the converted models' parameters.

        Returns:
            What follows its steps; the same object at a second call.
        """
        if optimizer not in self._owned:
            on_step = partial(self._note_step, optimizer)
            self._owned[optimizer] = OwnedOptimizer(
                optimizer,
                self._gradients,
                self._names,
                on_step=on_step,
                is_fusing=self._is_fusing,
            )
            self._num_steps[optimizer] = 0
        return self._owned[optimizer]

    @contextmanager
    def window(
        self,
        loss: Tensor,
        scaler: LossScaler,
        optimizers: Sequence[Optimizer],
        *,
        delay_unscale: bool = False,
    ) -> Iterator[tuple[Tensor, ScaledBackward]]:
        """Surround one backward; the gradients from before are back after an exception.

        Args:
            loss: The loss.
            scaler: Its scaler.
            optimizers: Optimizers of the parameters that the backward reaches.
            delay_unscale: Leave the gradients scaled for a later window of the same loss.

        Yields:
            The scaled loss, and the window, whose ``check`` is there at the end.

        Raises:
            RuntimeError: Another window is open.
        """
        if self._is_open:
            raise RuntimeError(
                "amp.scale_loss inside another amp.scale_loss; allowed: one at a time; leave the "
                "first 'with' block, after its backward, before you begin the second"
            )
        owned = [self.own(optimizer) for optimizer in optimizers]
        for item in owned:
            item.refresh()
        parameters = list(dict.fromkeys(one for item in owned for one in item.parameters))
        put_off = self._exchange.put_off(parameters)
        kept = [parameter for item in owned if item.keeps_scaled for parameter in item.parameters]
        window = ScaledBackward(
            parameters,
            self._gradients,
            scaler,
            names=self._names,
            delay_unscale=delay_unscale,
            kept_scaled=kept,
            due=self._exchange.due(parameters),
            is_put_off=bool(put_off),
        )
        self._is_open = True
        try:
            yield window.begin(loss), window
        except BaseException:
            window.abandon()
            raise
        finally:
            self._is_open = False
        window.close()
        self._exchange.note(parameters, put_off)

    def note_scales(
        self, optimizers: Sequence[Optimizer], scale: Tensor, new_scale: Tensor
    ) -> None:
        """Note which scale the gradients of optimizers had, for the log.

        Args:
            optimizers: The optimizers.
            scale: The scale of the backward.
            new_scale: The scale of the next one.
        """
        for optimizer in optimizers:
            self._scales[optimizer] = (scale, new_scale)

    def detach(self) -> None:
        """Give all optimizers back over the models' parameters, without gradients."""
        for owned in self._owned.values():
            owned.detach()
        self._owned.clear()
        self._exchange.remove()

    def _note_step(self, optimizer: Optimizer, check: GradientCheck) -> None:
        num_steps = self._num_steps[optimizer]
        self._num_steps[optimizer] += 1
        found = check.found_inf.to(torch.int32)
        self.skipped_steps = self.skipped_steps.to(found.device, non_blocking=True) + found
        one = torch.ones((), device=found.device)
        self._log.note(
            check,
            self._scales.get(optimizer, (one, one)),
            optimizer_index=list(self._owned).index(optimizer),
            num_steps=num_steps,
        )

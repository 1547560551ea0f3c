"""Which gradients DistributedDataParallel has yet to average over processes.

In a plain loop nobody tells whether a backward exchanges gradients; ``no_sync`` only sets a flag of
the wrapper. It is read in the forward of the model inside, where the wrapper reads it too.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_mp.amp.own_hook import OwnHook

__all__ = ["GradientExchange"]


class _Watch:
    """Note at each forward of a model whether the backward that follows is without an exchange."""

    def __init__(self, module: nn.Module) -> None:
        self.is_put_off = False
        self._handle = module.register_forward_pre_hook(OwnHook(module, self._before_forward))

    def remove(self) -> None:
        self._handle.remove()

    def _before_forward(self, module: nn.Module, args: object) -> None:
        if torch.is_grad_enabled():
            wrapper = DistributedDataParallel._get_active_ddp_module()
            self.is_put_off = wrapper is not None and not wrapper.require_backward_grad_sync


class GradientExchange:
    """Follow models through their backwards with and without an exchange of gradients."""

    def __init__(self) -> None:
        self._watches: dict[Tensor, _Watch] = {}
        self._local: set[Tensor] = set()

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Follow models, which may be wrapped later.

        Args:
            modules: The models.
        """
        for module in modules:
            watch = _Watch(module)
            for parameter in module.parameters():
                self._watches.setdefault(parameter, watch)

    def put_off(self, parameters: Sequence[Tensor]) -> set[Tensor]:
        """Return the parameters whose gradients the coming backward leaves in this process.

        Args:
            parameters: Model parameters.
        """
        watches = self._watches
        return {item for item in parameters if item in watches and watches[item].is_put_off}

    def due(self, parameters: Sequence[Tensor]) -> set[Tensor]:
        """Return the parameters whose earlier gradients the coming backward has to exchange too.

        Args:
            parameters: Model parameters.
        """
        return self._local.intersection(parameters) - self.put_off(parameters)

    def note(self, parameters: Sequence[Tensor], put_off: set[Tensor]) -> None:
        """Note a backward that is over.

        Args:
            parameters: Model parameters.
            put_off: What :meth:`put_off` said of it.
        """
        self._local = self._local.difference(parameters) | put_off

    def remove(self) -> None:
        """Follow nothing any longer."""
        for watch in dict.fromkeys(self._watches.values()):
            watch.remove()
        self._watches.clear()
        self._local.clear()

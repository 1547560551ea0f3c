"""Which gradients of a model are unscaled at present."""

import weakref

from torch import Tensor

__all__ = ["UnscaledGradients"]


class UnscaledGradients:
    """Remember gradients that were unscaled, for all optimizers of a model together.

    A gradient belongs to its parameter, not to an optimizer: two optimizers may share a parameter,
    and a step may follow another without a backward in between. A gradient that was zeroed or
    replaced since is forgotten by itself.
    """

    def __init__(self) -> None:
        # Weak: a gradient should go when its owner drops it.
        self._gradients: dict[Tensor, weakref.ref[Tensor]] = {}

    def add(self, parameter: Tensor) -> None:
        """Note that a parameter's present gradient is unscaled.

        Args:
            parameter: A model parameter.
        """
        if parameter.grad is not None:
            self._gradients[parameter] = weakref.ref(parameter.grad)

    def has(self, parameter: Tensor) -> bool:
        """Tell whether a parameter's present gradient is unscaled.

        Args:
            parameter: A model parameter.

        Returns:
            False if it has no gradient, too.
        """
        noted = self._gradients.get(parameter)
        return noted is not None and parameter.grad is not None and noted() is parameter.grad

    def clear(self) -> None:
        """Forget all: whatever is there is scaled from now on."""
        self._gradients.clear()

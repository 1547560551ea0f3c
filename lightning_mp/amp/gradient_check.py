"""Pass 1 over gradients: are they finite, and what unscales and clips them."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from torch import Tensor

from lightning_mp.amp.gradient_stats import any_flag, measure_gradients
from lightning_mp.amp.host_flag import HostFlag

__all__ = ["GradientCheck", "dense_values"]


class GradientCheck:
    """Look at the gradients of one optimizer step, on their devices.

    Args:
        parameters: Model parameters that have a gradient.
        names: Qualified name of each model parameter.
        inv_scale: Reciprocal of the gradients' loss scale; ``None`` for 1.
        max_norm: Largest L2 norm of the unscaled gradients; ``None`` for no limit.
        flags: What was found already: 1 for each gradient with an infinite or NaN element, else 0.
            Nothing is looked at then.

    Attributes:
        found_inf: Float32 scalar, 1 if any gradient element is infinite or NaN, else 0.
        factor: Float32 scalar that unscales and clips a gradient.
        norm: Float32 scalar, the L2 norm of the unscaled gradients, before they are clipped;
            ``None`` where nothing was looked at.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        names: Mapping[Tensor, str],
        *,
        inv_scale: Tensor | None = None,
        max_norm: float | None = None,
        flags: Tensor | None = None,
    ) -> None:
        self._parameters = tuple(parameters)
        self._names = names
        self.norm: Tensor | None
        if flags is not None:
            self._flags, self.found_inf = flags, any_flag(flags)
            self.factor, self.norm = flags.new_ones(()), None
            return
        gradients = [dense_values(parameter) for parameter in parameters]
        stats = measure_gradients(gradients, inv_scale=inv_scale, max_norm=max_norm)
        self.norm, self.factor, self.found_inf, self._flags = stats

    @property
    def num_gradients(self) -> int:
        """Number of gradients looked at."""
        return len(self._parameters)

    @property
    def has_gradients(self) -> bool:
        """Whether there was anything to look at."""
        return bool(self._parameters)

    @cached_property
    def flag(self) -> HostFlag:
        """The found_inf value for the host, which waits for it only when it reads."""
        return HostFlag(self.found_inf)

    @property
    def finite_flags(self) -> Tensor:
        """Bool tensor ``[num_gradients]``: which gradients are finite."""
        return self._flags == 0

    @property
    def parameter_names(self) -> list[str]:
        """Names of the parameters looked at, in the order of ``finite_flags``."""
        return [self._names.get(item, "<unnamed>") for item in self._parameters]


def dense_values(parameter: Tensor) -> Tensor:
    """Return the stored values of a parameter's gradient: itself, or a sparse one's values.

    Args:
        parameter: A tensor with a gradient.

    Returns:
        A dense tensor that shares memory with the gradient.
    """
    gradient = parameter.grad
    assert gradient is not None
    return gradient._values() if gradient.is_sparse else gradient

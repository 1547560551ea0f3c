"""Pass 1 over gradients: are they finite, and what unscales and clips them."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lightning_mp.amp.gradient_stats import measure_gradients
from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.kernels.reference import finite_flags

__all__ = ["GradientCheck", "dense_values"]


class GradientCheck:
    """Look at the gradients of one optimizer step, on their devices.

    Args:
        parameters: Model parameters that have a gradient.
        names: Qualified name of each model parameter.
        inv_scale: Reciprocal of the gradients' loss scale; ``None`` for 1.
        max_norm: Largest L2 norm of the unscaled gradients; ``None`` for no limit.

    Attributes:
        finite_flags: Bool tensor ``[len(parameters)]``.
        found_inf: Float32 scalar, 1 if any gradient element is infinite or NaN, else 0.
        factor: Float32 scalar that unscales and clips a gradient.
        norm: Float32 scalar, the L2 norm of the unscaled gradients, before they are clipped.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        names: Mapping[Tensor, str],
        *,
        inv_scale: Tensor | None = None,
        max_norm: float | None = None,
    ) -> None:
        self._parameters = tuple(parameters)
        self._names = names
        gradients = [dense_values(parameter) for parameter in parameters]
        stats = measure_gradients(gradients, inv_scale=inv_scale, max_norm=max_norm)
        self.norm, self.factor, self.found_inf = stats
        self.finite_flags = self._find_culprits(gradients)

    @property
    def has_gradients(self) -> bool:
        """Whether there was anything to look at."""
        return bool(self._parameters)

    @cached_property
    def flag(self) -> HostFlag:
        """The found_inf value for the host, which waits for it only when it reads."""
        return HostFlag(self.found_inf)

    @property
    def parameter_names(self) -> list[str]:
        """Names of the parameters looked at, in the order of ``finite_flags``."""
        return [self._names.get(item, "<unnamed>") for item in self._parameters]

    def _find_culprits(self, gradients: list[Tensor]) -> Tensor:
        if self.flag.is_ready() and not self.flag.read():
            # Nothing to look for: the host knows already.
            return torch.ones(len(gradients), dtype=torch.bool)
        groups: dict[torch.device, list[int]] = {}
        for index, gradient in enumerate(gradients):
            groups.setdefault(gradient.device, []).append(index)
        device = self.found_inf.device
        flags = torch.ones(len(gradients), dtype=torch.bool, device=device)
        for members in groups.values():
            found = finite_flags([gradients[index] for index in members])
            if len(groups) == 1:
                return found
            flags[members] = found.to(device, non_blocking=True)
        return flags


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

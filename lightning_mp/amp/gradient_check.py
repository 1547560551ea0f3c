"""Pass 1 over gradients: which of them are finite."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lightning_mp.amp.host_flag import HostFlag
from lightning_mp.kernels.reference import finite_flags

__all__ = ["GradientCheck", "dense_values"]


class GradientCheck:
    """Look at the gradients of one optimizer step, on their devices.

    Args:
        parameters: Model parameters that have a gradient.
        names: Qualified name of each model parameter.

    Attributes:
        finite_flags: Bool tensor ``[len(parameters)]``.
        found_inf: Float32 scalar, 1 if any gradient element is infinite or NaN, else 0.
    """

    def __init__(self, parameters: Sequence[Tensor], names: Mapping[Tensor, str]) -> None:
        self._parameters = tuple(parameters)
        self._names = names
        groups: dict[torch.device, list[int]] = {}
        for index, parameter in enumerate(parameters):
            groups.setdefault(parameter.device, []).append(index)
        device = parameters[0].device if parameters else torch.device("cpu")
        flags = torch.ones(len(parameters), dtype=torch.bool, device=device)
        for members in groups.values():
            found = finite_flags([dense_values(parameters[index]) for index in members])
            if len(groups) == 1:
                flags = found
            else:
                flags[members] = found.to(device, non_blocking=True)
        self.finite_flags = flags
        self.found_inf = flags.logical_not().any().float()

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

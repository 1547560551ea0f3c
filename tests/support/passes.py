"""Count the kernel passes of a step, and the FP32 gradients that it makes."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

STATS = "lightning_mp::gradient_stats_"
COPY = "lightning_mp::scale_copy_"
STEPS = ("lightning_mp::adam_step_", "lightning_mp::sgd_step_")

_ALLOCATIONS = {"aten::empty_like", "aten::empty", "aten::empty_strided"}


class Passes(TorchDispatchMode):
    """Note the operations that see many elements while the mode is on.

    Args:
        smallest: Number of elements from which on a tensor counts.

    Attributes:
        kernels: Names of the kernels of ours that ran, in order.
        others: Names of other operations that read or write a large tensor; those that only get its
            memory do not.
        float32: Number of large FP32 tensors that other operations made.
    """

    def __init__(self, smallest: int = 17) -> None:
        super().__init__()
        self.smallest = smallest
        self.kernels: list[str] = []
        self.others: list[str] = []
        self.float32 = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        result = func(*args, **(kwargs or {}))
        if name.startswith("lightning_mp::"):
            self.kernels.append(name)
        elif not func.is_view and any(map(self._is_large, _tensors([args, kwargs, result]))):
            if name not in _ALLOCATIONS:
                self.others.append(name)
            self.float32 += any(
                item.dtype == torch.float32 and self._is_large(item) for item in _tensors(result)
            )
        return result

    def _is_large(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() >= self.smallest


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [item for item in leaves if isinstance(item, torch.Tensor)]

"""Tell autograd of writes that it does not see: compiled kernels write through plain pointers."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["bump_versions"]


def bump_versions(*lists: Sequence[Tensor]) -> None:
    """Note a write to tensors that a graph may have saved: its backward then refuses to run.

    Args:
        lists: Tensors that were written. A write that did not happen after all, on a skipped step,
            counts too, as it does with torch's own fused optimizers.
    """
    if torch.compiler.is_compiling():
        # There the written tensors are outputs of a functional operation, copied back by torch.
        return
    for tensors in lists:
        torch.autograd.graph.increment_version(tensors)

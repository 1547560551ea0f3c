"""Say which implementation of the operations is active here, and why."""

from typing import NamedTuple

import torch

from lightning_mp.kernels.library import load_kernels
from lightning_mp.kernels.self_check import check_kernels

__all__ = ["KernelStatus", "describe_kernels"]


class KernelStatus(NamedTuple):
    """State of one group of operations on this machine.

    Args:
        operations: What the group does.
        implementation: The implementation that runs.
        reason: Why it is this one.
    """

    operations: str
    implementation: str
    reason: str


def describe_kernels(*, check: bool = False) -> list[KernelStatus]:
    """List the groups of operations with the implementation that runs.

    Args:
        check: Whether to run the compiled kernels once, on a megabyte, against the references.

    Returns:
        One entry per group.

    Example:
        >>> describe_kernels()[0].operations
        'fused steps on cpu'
    """
    library = load_kernels()
    if not library.is_loaded:
        return [KernelStatus("fused steps on cpu", "reference (torch)", library.reason)]
    details = [library.reason, library.isa, f"{torch.get_num_threads()} threads"]
    if check:
        details.append(f"self-check: {check_kernels()}")
    return [KernelStatus("fused steps on cpu", "C++ kernels", "; ".join(details))]

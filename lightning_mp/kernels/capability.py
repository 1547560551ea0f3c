"""Say which implementation of the operations is active here, and why."""

from typing import NamedTuple

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


def describe_kernels() -> list[KernelStatus]:
    """List the groups of operations with the implementation that runs.

    Returns:
        One entry per group.

    Example:
        >>> describe_kernels()[0].implementation
        'reference (torch)'
    """
    return [
        KernelStatus(
            operations="gradient check, unscale, clip and cast over many tensors",
            implementation="reference (torch)",
            reason="no native library in this version",
        )
    ]

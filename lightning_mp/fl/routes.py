"""Which way operators are computed, and how often each way was taken."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from lightning_mp.fl.library import fl_operators
from lightning_mp.fl.torch_module.device_index import DeviceLike, device_index

__all__ = ["OperatorCount", "operator_counts", "reset_operator_counts", "route", "set_routes"]


class OperatorCount(NamedTuple):
    """How often an operator was computed one way.

    Args:
        name: Name of the operator with its overload.
        route: ``"native"``, ``"generic"``, ``"cpu_fallback"`` or ``"refused"``.
        num_calls: Number of calls.
        num_copied_bytes: Bytes that the CPU fallback copied, both ways together.
    """

    name: str
    route: str
    num_calls: int
    num_copied_bytes: int


def operator_counts(device: DeviceLike = None) -> list[OperatorCount]:
    """Return what was computed on a device. Views are not counted: they compute nothing.

    Args:
        device: A device, its name or its id; None for the current one.

    Returns:
        One entry per operator and route that occurred, the most frequent first.
    """
    columns = fl_operators().counts(device_index(device))
    counts = [OperatorCount(*row) for row in zip(*columns, strict=True)]
    return sorted(counts, key=lambda count: -count.num_calls)


def reset_operator_counts() -> None:
    """Let the counts of all devices start at 0."""
    fl_operators().reset_counts()


def route(name: str, dtype: torch.dtype, device: DeviceLike = None) -> str:
    """Say which way an operator would be computed for tensors of a dtype; nothing is computed.

    Args:
        name: Name of the operator with its overload, such as ``"aten::add.Tensor"``.
        dtype: Dtype of all tensors.
        device: A device, its name or its id; None for the current one.

    Returns:
        ``"native"``, ``"generic"``, ``"cpu_fallback"``, ``"refused"``; or ``"composed"`` for what
        torch makes of other operators, and for views.
    """
    return fl_operators().route(name, device_index(device), dtype)


def set_routes(
    *,
    enable_cpu_fallback: bool = True,
    enable_generic_kernel: bool = True,
    warn: bool = True,
    deny: Iterable[str] = (),
    allow: Iterable[str] = (),
) -> None:
    """Say what may stand in where a device has no kernel.

    Args:
        enable_cpu_fallback: Whether the CPU may.
        enable_generic_kernel: Whether kernels of ``register_generic_kernel`` may.
        warn: Whether to warn, once per operator, device and way.
        deny: Operators that the CPU may not compute. A name without overload stands for all of
            them; the list that names the overload decides before one that names it without.
        allow: Operators that it may compute although ``enable_cpu_fallback`` is False.
    """
    fl_operators().set_routes(
        enable_cpu_fallback, enable_generic_kernel, warn, sorted(deny), sorted(allow)
    )

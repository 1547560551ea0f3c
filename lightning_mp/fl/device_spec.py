"""What one logical fl device is: the record that discovery makes and activation takes."""

from dataclasses import dataclass

import torch

__all__ = ["DeviceSpec"]


@dataclass(frozen=True)
class DeviceSpec:
    """Describe one logical device and the physical or simulated one under it."""

    index: int  # logical id; ids may have holes
    vendor: str  # "cpu", "cuda", "rocm", "xpu", "mps", ..., "sim"
    native_type: str  # torch device type under it: "cpu", "cuda", "xpu", "mps", ...
    native_index: int  # index there; 0 for cpu and sim
    name: str  # human name, e.g. "AMD EPYC 9B14, cores 0-1"; sim's says "simulated"
    uid: str  # stable identity: "cuda:GPU-<uuid>", "cpu:<host id>/0-1", "sim:0"
    is_simulated: bool = False
    cores: tuple[int, ...] = ()  # of a CPU partition; empty: all
    memory_bytes: int = 0  # capacity before memory_fraction
    memory_fraction: float = 1.0  # hard limit = fraction * memory_bytes
    alignment_bytes: int = 64  # sim: 256
    dtypes: frozenset[torch.dtype] | None = None  # None: all
    unsupported_operators: frozenset[str] = (
        frozenset()
    )  # "aten::tril": routes to generic -> CPU -> error
    slowdown: float = 1.0  # sim: declared factor

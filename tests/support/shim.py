"""The library that :mod:`support.kernel_shim` builds, from Python."""

import ctypes
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from lightning_mp.kernels.definitions import SCHEMAS

NAMESPACE = "lightning_mp_shim"
FORWARD, BACKWARD, SHUFFLED = 0, 1, 2


class Shim:
    """A loaded library: once per process.

    Attributes:
        cuda: Operations with the kernels of csrc/cuda.
        cpu: The same with those of csrc/cpu.
    """

    def __init__(self, library: Path) -> None:
        self._definitions = Library(NAMESPACE, "DEF")
        for name, schema in SCHEMAS.items():
            self._definitions.define(name + schema)
        torch.ops.load_library(str(library))
        self._functions = ctypes.CDLL(str(library))
        self._functions.shim_launches.restype = ctypes.c_char_p
        self.cuda: Any = getattr(torch.ops, NAMESPACE)
        self.cpu: Any = torch.ops.lightning_mp

    def run_as(
        self, order: int = FORWARD, *, seed: int = 0, max_grid: int = 0, first_block: int = 0
    ) -> None:
        """Choose the order of threads and blocks, and which blocks run."""
        self._functions.shim_set_order(order, seed)
        self._functions.shim_set_max_grid(max_grid)
        self._functions.shim_set_first_block(first_block)

    def capture(self, is_capturing: bool) -> None:
        """Pretend that a graph is being captured."""
        self._functions.shim_set_capturing(int(is_capturing))

    def launches(self) -> Counter[str]:
        """Return how often each kernel was launched since the last call."""
        names = self._functions.shim_launches().decode().split("\n")
        self._functions.shim_reset()
        return Counter(name for name in names if name)


def assert_same_bits(found: Tensor, expected: Tensor, what: str) -> None:
    """Fail if two tensors differ in any bit."""
    a, b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found, expected))
    if not torch.equal(a, b):
        index = int((a != b).nonzero()[0]) // found.element_size()
        values = found.reshape(-1)[index].item(), expected.reshape(-1)[index].item()
        raise AssertionError(f"{what}: element {index} of {found.numel()} is {values}")

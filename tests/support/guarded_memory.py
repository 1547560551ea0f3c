"""Tensors whose neighbourhood shows every access outside of them."""

import ctypes
import mmap
from typing import Literal

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
# An ordinary number in every floating type: a sum that takes it in is wrong, and stays finite.
RED_ZONE = 0x3F
Place = Literal["start", "end"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NO_RESERVE = 0x4000


class GuardedMemory:
    """Hands out tensors between pages that cannot be touched, and checks the bytes around them.

    Memory is never freed: processes that use this are short.
    """

    def __init__(self) -> None:
        self._zones: list[tuple[int, int]] = []

    def copy(self, tensor: Tensor, *, place: Place = "start", shift: int = 0) -> Tensor:
        """Return a contiguous copy.

        Args:
            tensor: What to copy.
            place: Whether the copy starts behind a guarded page or ends before one.
            shift: Elements between a page and a copy at its start.
        """
        result = self._allocate(tensor.numel(), tensor.dtype, place, shift).view(tensor.shape)
        result.copy_(tensor)
        return result

    def huge(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return zeros that take memory only where they are written."""
        num_bytes = numel * dtype.itemsize
        address = _map(num_bytes, _READ_WRITE, _PRIVATE | _NO_RESERVE)
        return _tensor_at(address, numel, dtype)

    def has_intact_zones(self) -> bool:
        """Tell whether no byte around the tensors was written."""
        return all(
            set(ctypes.string_at(address, length)) <= {RED_ZONE} for address, length in self._zones
        )

    def _allocate(self, numel: int, dtype: torch.dtype, place: Place, shift: int) -> Tensor:
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        num_bytes = numel * dtype.itemsize
        offset = shift * dtype.itemsize
        room = -(-(num_bytes + offset) // PAGE) * PAGE
        start = _map(room + 2 * PAGE, 0, _PRIVATE) + PAGE
        if _LIBC.mprotect(start, room, _READ_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
        ctypes.memset(start, RED_ZONE, room)
        address = start + room - num_bytes if place == "end" else start + offset
        self._zones += [
            (start, address - start),
            (address + num_bytes, start + room - address - num_bytes),
        ]
        return _tensor_at(address, numel, dtype)


def _map(num_bytes: int, protection: int, flags: int) -> int:
    address = _LIBC.mmap(None, num_bytes, protection, flags, -1, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return address


def _tensor_at(address: int, numel: int, dtype: torch.dtype) -> Tensor:
    buffer = (ctypes.c_char * (numel * dtype.itemsize)).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype, count=numel)

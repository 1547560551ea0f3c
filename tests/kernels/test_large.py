"""Tensors of more than 2**31 elements, in little memory: one tile is mapped again and again."""

import ctypes
import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.kernels import requires_kernels
from torch import Tensor

from lightning_mp.kernels.adam import adam_step_
from lightning_mp.kernels.gradient_stats import gradient_stats_
from lightning_mp.kernels.scale_copy import scale_copy_

NUMEL = 2**31 + 40
TILE = 2**24

pytestmark = [pytest.mark.slow, requires_kernels]

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0x0, 0x10, 0x4000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads would write one tile at the same time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@contextmanager
def aliased(dtype: torch.dtype) -> Iterator[Tensor]:
    """Make a tensor of NUMEL elements whose memory is one tile over and over."""
    num_tiles = math.ceil(NUMEL * dtype.itemsize / TILE)
    size = num_tiles * TILE
    tile = os.memfd_create("tile")
    os.ftruncate(tile, TILE)
    anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    base = libc.mmap(None, size, PROT_NONE, anywhere, -1, 0)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    for index in range(num_tiles):
        address = base + index * TILE
        mapped = libc.mmap(address, TILE, access, mmap.MAP_SHARED | MAP_FIXED, tile, 0)
        assert mapped == address, os.strerror(ctypes.get_errno())
    os.close(tile)
    buffer = (ctypes.c_byte * size).from_address(base)
    try:
        yield torch.frombuffer(buffer, dtype=dtype, count=NUMEL)
    finally:
        libc.munmap(base, size)


def test_every_element_counts_in_the_norm():
    with aliased(torch.bfloat16) as gradient:
        per_tile = TILE // 2
        gradient[:per_tile].fill_(0.0)
        gradient[7] = 3.0
        norm, factor, found_inf = torch.zeros(3, 1).unbind()
        gradient_stats_([gradient], norm=norm, factor=factor, found_inf=found_inf)
        # Once in each tile, and once in the part of a tile at the end.
        assert norm.item() == pytest.approx(3 * math.sqrt(NUMEL // per_tile + 1), rel=1e-7)
        # The last elements alone: seen through the first tile, they are at its start.
        gradient[39] = math.inf
        gradient_stats_([gradient[2**31 :]], norm=norm, factor=factor, found_inf=found_inf)
        assert found_inf.item() == 1.0


def test_every_element_is_updated():
    with aliased(torch.bfloat16) as gradient, aliased(torch.float32) as weight:
        gradient[: TILE // 2].fill_(1.0)
        weight[: TILE // 4].fill_(1.0)
        scale_copy_([gradient], [weight], scale=torch.tensor(2.0), found_inf=torch.zeros(1))
        assert bool((weight[: TILE // 4] == 2.0).all())
        with aliased(torch.float32) as mean, aliased(torch.float32) as mean_square:
            mean[: TILE // 4].zero_()
            mean_square[: TILE // 4].zero_()
            step = torch.zeros(())
            empty = torch.empty(0)
            # A second moment of decay 0 and a first one of decay 0: each update subtracts lr.
            adam_step_(
                [gradient],
                [weight],
                [empty],
                [mean],
                [mean_square],
                [step],
                lr=2.0**-10,
                betas=(0.0, 0.0),
                eps=0.0,
            )
            updates = (2.0 - weight[: TILE // 4]) * 2.0**10
            whole, rest = divmod(NUMEL, TILE // 4)
            assert bool((updates[:rest] == whole + 1).all())
            assert bool((updates[rest:] == whole).all())

"""fl_malloc, fl_free and fl_owner, as native code calls them."""

import ctypes
import importlib.util

import pytest
import torch

MIB = 1 << 20


@pytest.fixture
def library() -> ctypes.CDLL:
    library = ctypes.CDLL(importlib.util.find_spec("lightning_mp._fl").origin)
    library.fl_malloc.restype = ctypes.c_void_p
    library.fl_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int]
    library.fl_free.argtypes = [ctypes.c_void_p]
    library.fl_owner.argtypes = [ctypes.c_void_p]
    return library


@pytest.mark.parametrize("index", [0, 1, 3])
def test_blocks_are_counted_owned_and_freed(library: ctypes.CDLL, index: int):
    before = torch.fl.memory_allocated(index)
    data = library.fl_malloc(4 * MIB, index)
    assert torch.fl.memory_allocated(index) == before + 4 * MIB
    assert library.fl_owner(data) == library.fl_owner(data + 7) == index
    ctypes.memset(data, 1, 4 * MIB)
    library.fl_free(data)
    assert torch.fl.memory_allocated(index) == before


def test_null_where_there_is_no_device_or_no_memory(library: ctypes.CDLL):
    assert library.fl_malloc(16, 2) is None
    assert library.fl_malloc(16, -1) is None
    assert library.fl_malloc(65 * MIB, 1) is None
    assert library.fl_malloc(0, 0) is None


def test_what_is_not_ours_is_ignored(library: ctypes.CDLL):
    tensor = torch.ones(7, device="fl:1")
    library.fl_free(None)
    library.fl_free(tensor.data_ptr())
    assert tensor.sum().item() == 7
    assert library.fl_owner(tensor.data_ptr()) == 1
    assert library.fl_owner(torch.ones(7).data_ptr()) == -1

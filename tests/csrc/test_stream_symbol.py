"""torch's current stream is found exactly where torch has CUDA."""

import ctypes
import importlib.util

import torch
from support.kernels import requires_kernels

SYMBOL = "aoti_torch_get_current_cuda_stream"


@requires_kernels
def test_stream_is_visible_from_the_library_if_torch_has_cuda() -> None:
    spec = importlib.util.find_spec("lightning_mp._C")
    assert spec is not None
    assert spec.origin is not None
    # Looks into the library and what it was linked with, and nowhere else: linked with libtorch_cpu
    # alone, it would find no stream and take every torch for one without CUDA.
    library = ctypes.CDLL(spec.origin)

    assert hasattr(library, SYMBOL) == (torch.version.cuda is not None)

// Registration for CUDA devices; built only with the kernels of csrc/cuda. Nothing here has run on
// a GPU yet: tests compile it, look at the machine code and run the kernels on the CPU.
#include <torch/csrc/stable/library.h>

#include "bind/cuda_calls.h"

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CUDA, library) {
  lightning_mp::bind::register_cuda_calls(library);
}

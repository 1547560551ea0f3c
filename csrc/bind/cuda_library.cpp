// Registration for CUDA devices; built only with the kernels of csrc/cuda. Nothing here has run on
// a GPU yet: tests compile it, look at the machine code and run the kernels on the CPU.
#include <torch/csrc/stable/library.h>

#include "bind/cuda_steps.h"

namespace lightning_mp::bind {

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CUDA, library) {
  library.impl("gradient_stats_", TORCH_BOX(&gradient_stats<run_on_cuda>));
  library.impl("adam_step_", TORCH_BOX(&adam_step<run_on_cuda>));
  library.impl("sgd_step_", TORCH_BOX(&sgd_step<run_on_cuda>));
}

}  // namespace lightning_mp::bind

// Registers the boxed kernel for every operator of torch that needs one.
#pragma once

#include <torch/library.h>

namespace lightning_mp::fl {

// Returns how many operators got a kernel. To be called after all kernels that are written by hand.
int register_boxed_kernels(torch::Library& aten);
void register_fallback(torch::Library& all);

}  // namespace lightning_mp::fl

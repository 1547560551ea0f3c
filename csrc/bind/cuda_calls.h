// What operations do on CUDA devices, for who registers them.
#pragma once

#include <torch/csrc/stable/library.h>

#include "bind/adam_step.h"
#include "bind/cross_entropy.h"
#include "bind/gradient_stats.h"
#include "bind/l2_norm.h"
#include "bind/maps.h"
#include "bind/sgd_step.h"
#include "bind/update_scale.h"

namespace lightning_mp::bind {

void run_on_cuda(const GradientStatsCall& call);
bool run_on_cuda(const AdamCall& call);
bool run_on_cuda(const SgdCall& call);
void run_on_cuda(const L2NormCall& call);
void run_on_cuda(const ScaleCopyCall& call);
void run_on_cuda(const AxpbyCall& call);
void run_on_cuda(const SplitCall& call);
void run_on_cuda(const JoinCall& call);
void run_on_cuda(const UpdateScaleCall& call);
void run_on_cuda(const CrossEntropyForwardCall& call);
void run_on_cuda(const CrossEntropyBackwardCall& call);

// Registers all of them in a library of operations, such as that of a device type.
inline void register_cuda_calls(torch::stable::detail::StableLibrary& library) {
  library.impl("gradient_stats_", TORCH_BOX(&gradient_stats<run_on_cuda>));
  library.impl("adam_step_", TORCH_BOX(&adam_step<run_on_cuda>));
  library.impl("sgd_step_", TORCH_BOX(&sgd_step<run_on_cuda>));
  library.impl("l2_norm", TORCH_BOX(&l2_norm<run_on_cuda>));
  library.impl("scale_copy_", TORCH_BOX(&scale_copy<run_on_cuda>));
  library.impl("axpby_", TORCH_BOX(&axpby<run_on_cuda>));
  library.impl("split_", TORCH_BOX(&split<run_on_cuda>));
  library.impl("join_", TORCH_BOX(&join<run_on_cuda>));
  library.impl("update_scale_", TORCH_BOX(&update_scale<run_on_cuda>));
  library.impl("cross_entropy_forward", TORCH_BOX(&cross_entropy_forward<run_on_cuda>));
  library.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward<run_on_cuda>));
}

}  // namespace lightning_mp::bind

// The operations on CUDA devices, for who registers them.
#pragma once

#include "bind/adam_step.h"
#include "bind/gradient_stats.h"
#include "bind/sgd_step.h"

namespace lightning_mp::bind {

void run_on_cuda(const GradientStatsCall& call);

bool run_on_cuda(const AdamCall& call);

bool run_on_cuda(const SgdCall& call);

}  // namespace lightning_mp::bind

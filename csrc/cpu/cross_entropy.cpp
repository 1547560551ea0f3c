#include "cpu/cross_entropy.h"

#include <algorithm>

#include "cpu/kernels.h"

namespace lightning_mp::cpu {
namespace {

// Rows that are worth a thread.
int64_t grain_of(const CrossEntropyInputs& inputs) {
  return 1 + kWalkGrain / std::max<int64_t>(1, inputs.num_classes);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyInputs& inputs, float* losses,
                           RowStatistics* statistics, Isa isa, const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  parallel_for(inputs.num_rows, grain_of(inputs), [&](int64_t begin, int64_t end) {
    kernels.cross_entropy_forward(inputs, begin, end, losses, statistics);
  });
}

void cross_entropy_backward(const CrossEntropyInputs& inputs, const RowStatistics* statistics,
                            const float* gradients, void* results, Isa isa,
                            const ParallelFor& parallel_for) {
  const Kernels& kernels = kernels_of(isa);
  parallel_for(inputs.num_rows, grain_of(inputs), [&](int64_t begin, int64_t end) {
    kernels.cross_entropy_backward(inputs, begin, end, statistics, gradients, results);
  });
}

}  // namespace lightning_mp::cpu

// The kernels of one instruction set: what they do to a piece of one row.
#pragma once

#include <stdint.h>

#include "common/cross_entropy.h"
#include "common/parameters.h"
#include "common/row.h"
#include "cpu/isa.h"
#include "functors/adam.h"
#include "functors/sgd.h"

namespace lightning_mp::cpu {

enum class SgdKind { kPlain, kMomentum, kNesterov };

// All but the last take the elements [begin, end) of a row, whose dtypes say which variant runs.
struct Kernels {
  // Sum of squares of up to kNormChunk elements of `role`; sets *has_inf if one is not finite.
  double (*sum_of_squares)(const TensorRow& row, int role, int64_t begin, int64_t end,
                           bool* has_inf);
  void (*adam_step)(const TensorRow& row, int64_t begin, int64_t end, const AdamScalars& scalars,
                    bool is_decoupled, StepOptions options);
  void (*sgd_step)(const TensorRow& row, int64_t begin, int64_t end, const SgdScalars& scalars,
                   SgdKind kind, StepOptions options);
  // Outputs are inputs times `scale`, or a * x + b * y. Return whether all results are finite,
  // before they are rounded to half.
  bool (*scale_copy)(const TensorRow& row, int64_t begin, int64_t end, float scale);
  bool (*axpby)(const TensorRow& row, int64_t begin, int64_t end, float a, float b);
  // Between an FP32 tensor and its bfloat16 halves and remainders.
  void (*split)(const TensorRow& row, int64_t begin, int64_t end);
  void (*join)(const TensorRow& row, int64_t begin, int64_t end);
  // The rows [begin, end) of logits.
  void (*cross_entropy_forward)(const CrossEntropyInputs& inputs, int64_t begin, int64_t end,
                                float* losses, RowStatistics* statistics);
  void (*cross_entropy_backward)(const CrossEntropyInputs& inputs, int64_t begin, int64_t end,
                                 const RowStatistics* statistics, const float* gradients,
                                 void* results);
};

const Kernels& kernels_of(Isa isa);

}  // namespace lightning_mp::cpu

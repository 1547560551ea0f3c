// The FP32 weights of a step, as they are stored.
#pragma once

#include "common/parameters.h"
#include "common/row.h"
#include "cuda/vectors.cuh"
#include "functors/split_master.h"

namespace lightning_mp::cuda {

// `load` takes what was stored, and the half copy where reads_copy() says so; `store` makes both
// from the weight.
struct PlainWeight {
  using Stored = float;
  using Copy = BFloat16;
  static constexpr bool kHasCopy = false;

  static HOST_DEVICE bool reads_copy(StepOptions) { return false; }

  static HOST_DEVICE float load(Stored stored, Copy, StepOptions) { return stored; }

  static HOST_DEVICE void store(float weight, Stored& stored, Copy&) { stored = weight; }
};

template <class Half>
struct CopiedWeight {
  using Stored = float;
  using Copy = Half;
  static constexpr bool kHasCopy = true;

  static HOST_DEVICE bool reads_copy(StepOptions options) { return options.adopt; }

  static HOST_DEVICE float load(Stored stored, Copy copy, StepOptions options) {
    // By bits: a NaN is not equal to itself.
    return options.adopt && narrow<Copy>(stored).bits != copy.bits ? widen(copy) : stored;
  }

  static HOST_DEVICE void store(float weight, Stored& stored, Copy& copy) {
    stored = weight;
    copy = narrow<Copy>(weight);
  }
};

struct SplitWeight {
  using Stored = uint16_t;
  using Copy = BFloat16;
  static constexpr bool kHasCopy = true;

  static HOST_DEVICE bool reads_copy(StepOptions) { return true; }

  static HOST_DEVICE float load(Stored stored, Copy copy, StepOptions) {
    return join_master(copy, stored);
  }

  static HOST_DEVICE void store(float weight, Stored& stored, Copy& copy) {
    const SplitMaster split = split_master(weight);
    copy = split.half;
    stored = split.remainder;
  }
};

// Calls function(Weight{}) with how the weights of a row are stored.
template <class Function>
HOST_DEVICE void with_weight(const TensorRow& row, const Function& function) {
  if (row.dtypes[kWeight] == DType::kInt16) {
    function(SplitWeight{});
  } else if (row.dtypes[kCopy] == DType::kBFloat16) {
    function(CopiedWeight<BFloat16>{});
  } else if (row.dtypes[kCopy] == DType::kFloat16) {
    function(CopiedWeight<Float16>{});
  } else {
    function(PlainWeight{});
  }
}

}  // namespace lightning_mp::cuda

// The steps: gradients to weights and half copies, by a rule of functors/.
#pragma once

#include "cuda/chunks.cuh"
#include "functors/adam.h"
#include "functors/sgd.h"
#include "functors/split_master.h"

namespace lightning_mp::cuda {

constexpr int kStepThreads = 256;
// Blocks that a multiprocessor shall hold, which bounds a thread to 80 registers: loads of many
// threads have to be on their way to keep its memory busy.
constexpr int kStepBlocks = 3;

// Where the scalars of a row come from.
template <class Scalars>
struct Source;

// A table that prepare_adam_kernel wrote.
template <>
struct Source<AdamScalars> {
  const AdamScalars* scalars;

  HOST_DEVICE AdamScalars of_row(int64_t row) const { return scalars[row]; }
};

// The same for all rows. The host makes them for a factor of 1; what lives on the device comes in
// its place.
template <>
struct Source<SgdScalars> {
  SgdScalars scalars;
  const float* lr_tensor;
  const float* factor;

  HOST_DEVICE SgdScalars of_row(int64_t) const {
    SgdScalars result = scalars;
    if (lr_tensor != nullptr) result.lr = *lr_tensor;
    if (factor != nullptr) result.gradient_factor *= *factor;
    return result;
  }
};

HOST_DEVICE bool is_skipped(const float* found_inf) {
  return found_inf != nullptr && *found_inf != 0.0f;
}

// How an FP32 weight is stored. `load` takes what was stored, and the half copy where
// reads_copy() says so; `store` makes both from the weight.
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

template <class T>
HOST_DEVICE T* at(const TensorRow& row, int role, int64_t index) {
  return static_cast<T*>(row.tensors[role]) + index;
}

// No array may be empty.
template <class Rule>
constexpr int kStateSlots = Rule::kNumStates > 0 ? Rule::kNumStates : 1;

template <class Rule, class Gradient, class Weight>
HOST_DEVICE void step_eight(const TensorRow& row, const typename Rule::Scalars& scalars,
                            StepOptions options, int64_t index) {
  using Stored = typename Weight::Stored;
  using Copy = typename Weight::Copy;
  // All loads come first, so that they are on their way at the same time.
  Pack<Gradient> gradient = load_pack(at<Gradient>(row, kGradient, index));
  Pack<Stored> stored = load_pack(at<Stored>(row, kWeight, index));
  Pack<Copy> copy = {};
  if (Weight::reads_copy(options)) copy = load_pack(at<Copy>(row, kCopy, index));
  Pack<float> states[kStateSlots<Rule>];
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    states[s] = load_pack(at<float>(row, kFirstState + s, index));
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    Stored new_stored = stored.get(k);
    Copy new_copy = copy.get(k);
    float weight = Weight::load(new_stored, new_copy, options);
    float element_states[kStateSlots<Rule>];
#pragma unroll
    for (int s = 0; s < Rule::kNumStates; ++s) element_states[s] = states[s].get(k);
    Rule::step(widen(gradient.get(k)), weight, element_states, scalars);
#pragma unroll
    for (int s = 0; s < Rule::kNumStates; ++s) states[s].set(k, element_states[s]);
    Weight::store(weight, new_stored, new_copy);
    stored.set(k, new_stored);
    copy.set(k, new_copy);
  }
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    store_pack(states[s], at<float>(row, kFirstState + s, index));
  }
  store_pack(stored, at<Stored>(row, kWeight, index));
  if constexpr (Weight::kHasCopy) store_pack(copy, at<Copy>(row, kCopy, index));
  if (options.zero_gradients) {
    gradient.clear();
    store_pack(gradient, at<Gradient>(row, kGradient, index));
  }
}

template <class Rule>
HOST_DEVICE void step_one(const TensorRow& row, const typename Rule::Scalars& scalars,
                          StepOptions options, int64_t index) {
  float weight;
  with_weight(row, [&](auto form) {
    using Weight = decltype(form);
    typename Weight::Copy copy = {};
    if (Weight::reads_copy(options)) {
      copy = load_one(at<typename Weight::Copy>(row, kCopy, index));
    }
    weight =
        Weight::load(load_one(at<typename Weight::Stored>(row, kWeight, index)), copy, options);
  });
  float states[kStateSlots<Rule>];
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    states[s] = load_one(at<float>(row, kFirstState + s, index));
  }
  Rule::step(load_float(row.tensors[kGradient], row.dtypes[kGradient], index), weight, states,
             scalars);
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    store_one(states[s], at<float>(row, kFirstState + s, index));
  }
  with_weight(row, [&](auto form) {
    using Weight = decltype(form);
    typename Weight::Stored stored;
    typename Weight::Copy copy;
    Weight::store(weight, stored, copy);
    store_one(stored, at<typename Weight::Stored>(row, kWeight, index));
    if constexpr (Weight::kHasCopy) {
      store_one(copy, at<typename Weight::Copy>(row, kCopy, index));
    }
  });
  if (options.zero_gradients) {
    store_float(0.0f, row.tensors[kGradient], row.dtypes[kGradient], index);
  }
}

// Whether what is there of a row lies at multiples of 16 bytes.
template <int kNumStates>
HOST_DEVICE bool is_aligned_step(const TensorRow& row) {
  bool result = true;
#pragma unroll
  for (int role = 0; role < kFirstState + kNumStates; ++role) {
    result = result && is_aligned(row.tensors[role]);
  }
  return result;
}

template <class Rule>
HOST_DEVICE void step_chunk(const Chunk& chunk, const TensorRow& row,
                            const typename Rule::Scalars& scalars, StepOptions options) {
  const bool is_aligned_row = is_aligned_step<Rule::kNumStates>(row);
  // The same for all threads of a block.
  with_type(row.dtypes[kGradient], [&](auto gradient) {
    with_weight(row, [&](auto weight) {
      for_each_eight(chunk, is_aligned_row, [&](int64_t i) {
        step_eight<Rule, decltype(gradient), decltype(weight)>(row, scalars, options, i);
      });
    });
  });
  for_each_one(chunk, is_aligned_row, [&](int64_t i) { step_one<Rule>(row, scalars, options, i); });
}

template <class Rule>
static __global__ void __launch_bounds__(kStepThreads, kStepBlocks)
    step_kernel(DeviceTable table, Source<typename Rule::Scalars> source, const float* found_inf,
                StepOptions options) {
  // What all threads of a block need is kept here, to spare their registers.
  __shared__ Chunk chunk;
  __shared__ TensorRow row;
  __shared__ typename Rule::Scalars scalars;
  if (is_skipped(found_inf)) return;
  for (int64_t index = blockIdx.x; index < table.num_chunks; index += gridDim.x) {
    if (threadIdx.x == 0) {
      chunk = find_chunk(table, index, kChunk);
      row = table.rows[chunk.row];
      scalars = source.of_row(chunk.row);
    }
    __syncthreads();
    step_chunk<Rule>(chunk, row, scalars, options);
    __syncthreads();
  }
}

}  // namespace lightning_mp::cuda

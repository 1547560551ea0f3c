// The steps: gradients to weights and half copies, by a rule of functors/.
#pragma once

#include "cuda/chunks.cuh"
#include "cuda/weights.cuh"
#include "functors/adam.h"
#include "functors/sgd.h"
#include "functors/stochastic_rounding.h"

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

template <class T>
HOST_DEVICE T* at(const TensorRow& row, int role, int64_t index) {
  return static_cast<T*>(row.tensors[role]) + index;
}

// No array may be empty.
template <class Rule>
constexpr int kStateSlots = Rule::kNumStates > 0 ? Rule::kNumStates : 1;

// What there is for the states of an element that is rounded stochastically.
template <class Rule>
HOST_DEVICE uint32_t random_of(const typename Rule::Scalars& scalars, int64_t place) {
  if constexpr (sizeof(typename Rule::State) < sizeof(float)) {
    static_assert(Rule::kNumStates <= kMaxRoundedStates);
    return random_words(static_cast<uint32_t>(place), scalars.rounding);
  }
  return 0;
}

template <class State>
HOST_DEVICE State stored_state(float state, uint32_t random, int index) {
  if constexpr (sizeof(State) < sizeof(float)) {
    const uint32_t rounded = rounded_to_upper(bits_of(state), chance_of(random, index));
    return BFloat16{static_cast<uint16_t>(rounded >> 16)};
  } else {
    return state;
  }
}

template <class Rule, class Gradient, class Weight>
HOST_DEVICE void step_eight(const TensorRow& row, const typename Rule::Scalars& scalars,
                            StepOptions options, int64_t index) {
  using Stored = typename Weight::Stored;
  using Copy = typename Weight::Copy;
  using State = typename Rule::State;
  // All loads come first, so that they are on their way at the same time.
  Pack<Gradient> gradient = load_pack(at<Gradient>(row, kGradient, index));
  Pack<Stored> stored = load_pack(at<Stored>(row, kWeight, index));
  Pack<Copy> copy = {};
  if (Weight::reads_copy(options)) copy = load_pack(at<Copy>(row, kCopy, index));
  Pack<State> states[kStateSlots<Rule>];
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    states[s] = load_pack(at<State>(row, kFirstState + s, index));
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    Stored new_stored = stored.get(k);
    Copy new_copy = copy.get(k);
    float weight = Weight::load(new_stored, new_copy, options);
    float element_states[kStateSlots<Rule>];
#pragma unroll
    for (int s = 0; s < Rule::kNumStates; ++s) element_states[s] = widen(states[s].get(k));
    Rule::step(widen(gradient.get(k)), weight, element_states, scalars);
    const uint32_t random = random_of<Rule>(scalars, index + k);
#pragma unroll
    for (int s = 0; s < Rule::kNumStates; ++s) {
      states[s].set(k, stored_state<State>(element_states[s], random, s));
    }
    Weight::store(weight, new_stored, new_copy);
    stored.set(k, new_stored);
    copy.set(k, new_copy);
  }
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    store_pack(states[s], at<State>(row, kFirstState + s, index));
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
  using State = typename Rule::State;
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
    states[s] = widen(load_one(at<State>(row, kFirstState + s, index)));
  }
  Rule::step(load_float(row.tensors[kGradient], row.dtypes[kGradient], index), weight, states,
             scalars);
  const uint32_t random = random_of<Rule>(scalars, index);
#pragma unroll
  for (int s = 0; s < Rule::kNumStates; ++s) {
    store_one(stored_state<State>(states[s], random, s), at<State>(row, kFirstState + s, index));
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

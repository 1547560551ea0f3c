// What reads and writes each element once: casts, sums, splits.
#pragma once

#include "common/found_inf.h"
#include "cuda/chunks.cuh"
#include "functors/loss_scale.h"
#include "functors/scalar_math.h"
#include "functors/split_master.h"

namespace lightning_mp::cuda {

constexpr int kMapThreads = 256;

// What a map kernel is made of: the tensors it reads and writes, and what it does to eight of them.
struct ScaleMap {
  static constexpr int kNumInputs = 1;
  const float* scale;

  HOST_DEVICE float of(const float (&inputs)[1]) const { return inputs[0] * *scale; }
};

struct AxpbyMap {
  static constexpr int kNumInputs = 2;
  float a;
  float b;

  HOST_DEVICE float of(const float (&inputs)[2]) const {
    return multiply_add(a, inputs[0], b * inputs[1]);
  }
};

HOST_DEVICE void load_eight(const TensorRow& row, int role, int64_t index,
                            float (&values)[kWidth]) {
  with_type(row.dtypes[role], [&](auto type) {
    const auto pack = load_pack(static_cast<const decltype(type)*>(row.tensors[role]) + index);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] = widen(pack.get(k));
  });
}

HOST_DEVICE void store_eight(const float (&values)[kWidth], const TensorRow& row, int role,
                             int64_t index) {
  with_type(row.dtypes[role], [&](auto type) {
    using T = decltype(type);
    Pack<T> pack;
    pack.clear();
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pack.set(k, narrow<T>(values[k]));
    store_pack(pack, static_cast<T*>(row.tensors[role]) + index);
  });
}

// Whether the results are finite, before they are rounded to half; an input that is not leaves none
// that is.
template <class Map>
HOST_DEVICE bool map_eight(const TensorRow& row, int64_t index, const Map& map) {
  float inputs[Map::kNumInputs][kWidth];
#pragma unroll
  for (int input = 0; input < Map::kNumInputs; ++input) {
    load_eight(row, kInput + input, index, inputs[input]);
  }
  float results[kWidth];
  bool all_finite = true;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    float operands[Map::kNumInputs];
#pragma unroll
    for (int input = 0; input < Map::kNumInputs; ++input) {
      operands[input] = inputs[input][k];
    }
    results[k] = map.of(operands);
    all_finite = all_finite && is_finite(results[k]);
  }
  store_eight(results, row, kOutput, index);
  return all_finite;
}

template <class Map>
HOST_DEVICE bool map_one(const TensorRow& row, int64_t index, const Map& map) {
  float operands[Map::kNumInputs];
#pragma unroll
  for (int input = 0; input < Map::kNumInputs; ++input) {
    operands[input] = load_float(row.tensors[kInput + input], row.dtypes[kInput + input], index);
  }
  const float result = map.of(operands);
  store_float(result, row.tensors[kOutput], row.dtypes[kOutput], index);
  return is_finite(result);
}

HOST_DEVICE bool is_aligned_map(const TensorRow& row) {
  return is_aligned(row.tensors[0]) && is_aligned(row.tensors[1]) && is_aligned(row.tensors[2]);
}

template <class Map>
static __global__ void __launch_bounds__(kMapThreads)
    map_kernel(DeviceTable table, Map map, FoundInf found_inf) {
  for (int64_t index = blockIdx.x; index < table.num_chunks; index += gridDim.x) {
    const Chunk chunk = find_chunk(table, index, kChunk);
    const TensorRow row = table.rows[chunk.row];
    // Every thread that finds something writes the same.
    const bool is_aligned_row = is_aligned_map(row);
    for_each_eight(chunk, is_aligned_row, [&](int64_t i) {
      if (!map_eight(row, i, map)) *found_inf.of(chunk.row) = 1.0f;
    });
    for_each_one(chunk, is_aligned_row, [&](int64_t i) {
      if (!map_one(row, i, map)) *found_inf.of(chunk.row) = 1.0f;
    });
  }
}

// The tensors of a split master.
struct SplitPointers {
  float* whole;
  BFloat16* half;
  uint16_t* remainder;
};

HOST_DEVICE void split_eight(const SplitPointers& at, int64_t index) {
  const Pack<float> whole = load_pack(at.whole + index);
  Pack<BFloat16> half;
  Pack<uint16_t> remainder;
  half.clear();
  remainder.clear();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const SplitMaster split = split_master(whole.get(k));
    half.set(k, split.half);
    remainder.set(k, split.remainder);
  }
  store_pack(half, at.half + index);
  store_pack(remainder, at.remainder + index);
}

HOST_DEVICE void split_one(const SplitPointers& at, int64_t index) {
  const SplitMaster split = split_master(load_one(at.whole + index));
  store_one(split.half, at.half + index);
  store_one(split.remainder, at.remainder + index);
}

HOST_DEVICE void join_eight(const SplitPointers& at, int64_t index) {
  const Pack<BFloat16> half = load_pack(at.half + index);
  const Pack<uint16_t> remainder = load_pack(at.remainder + index);
  Pack<float> whole;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) whole.set(k, join_master(half.get(k), remainder.get(k)));
  store_pack(whole, at.whole + index);
}

HOST_DEVICE void join_one(const SplitPointers& at, int64_t index) {
  store_one(join_master(load_one(at.half + index), load_one(at.remainder + index)),
            at.whole + index);
}

template <bool kIsJoin>
static __global__ void __launch_bounds__(kMapThreads) split_kernel(DeviceTable table) {
  for (int64_t index = blockIdx.x; index < table.num_chunks; index += gridDim.x) {
    const Chunk chunk = find_chunk(table, index, kChunk);
    const TensorRow row = table.rows[chunk.row];
    const SplitPointers at = {static_cast<float*>(row.tensors[kWhole]),
                              static_cast<BFloat16*>(row.tensors[kHalf]),
                              static_cast<uint16_t*>(row.tensors[kRemainder])};
    const bool is_aligned_row = is_aligned_map(row);
    for_each_eight(chunk, is_aligned_row,
                   [&](int64_t i) { kIsJoin ? join_eight(at, i) : split_eight(at, i); });
    for_each_one(chunk, is_aligned_row,
                 [&](int64_t i) { kIsJoin ? join_one(at, i) : split_one(at, i); });
  }
}

// One thread.
static __global__ void update_scale_kernel(float* scale, int32_t* growth_tracker,
                                           int32_t* hysteresis_tracker, const float* found_inf,
                                           ScaleParameters parameters) {
  const ScaleState state = next_scale(ScaleState{*scale, *growth_tracker, *hysteresis_tracker},
                                      *found_inf != 0.0f, parameters);
  *scale = state.scale;
  *growth_tracker = state.growth_tracker;
  *hysteresis_tracker = state.hysteresis_tracker;
}

}  // namespace lightning_mp::cuda

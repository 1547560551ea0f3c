// Cross-entropy of half logits, in the order of functors/cross_entropy.h: a block of threads for
// each row. A row is read more than once; after the first time it is in the caches.
#pragma once

#include "cuda/vectors.cuh"
#include "functors/cross_entropy.h"

namespace lightning_mp::cuda {

constexpr int kRowThreads = 256;
constexpr int kThreadsPerTermBlock = kNormLanes / kWidth;
// Blocks of terms that are summed side by side, and the elements of all of them.
constexpr int kTermBlocks = kRowThreads / kThreadsPerTermBlock;
constexpr int64_t kTermSweep = kTermBlocks * kTermBlock;
constexpr int kTermLines = static_cast<int>(kTermBlock) / kNormLanes;

// What the threads of a row share.
struct RowShared {
  float lanes[kTermBlocks][kNormLanes];
  float maxima[kRowThreads];
};

template <class T>
HOST_DEVICE const T* row_of(const CrossEntropyInputs& inputs, int64_t row) {
  return static_cast<const T*>(inputs.logits) + row * inputs.row_stride;
}

// A target that is no class stops the kernel, as it does torch's.
HOST_DEVICE void check_target(const CrossEntropyInputs& inputs, int64_t target) {
  if (target < 0 || target >= inputs.num_classes) TRAP();
}

template <class T>
HOST_DEVICE RowTarget target_of(const CrossEntropyInputs& inputs, const T* logits, int64_t target) {
  const float weight =
      inputs.class_weights == nullptr ? 1.0f : load_one(inputs.class_weights + target);
  return RowTarget{widen(load_one(logits + target)), weight};
}

template <class T>
__device__ inline float row_maximum(const T* logits, int count, RowShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_aligned_row = is_aligned(logits);
  float maximum = -__builtin_inff();
  for (int64_t i = thread * kWidth; i < count; i += kRowThreads * kWidth) {
    const int offset = static_cast<int>(i);
    const Pack<T> pack = load_lanes(logits, count, offset, is_aligned_row);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (offset + k < count) maximum = maximum_of(widen(pack.get(k)), maximum);
    }
  }
  shared.maxima[thread] = maximum;
  __syncthreads();
  for (int width = kRowThreads / 2; width > 0; width /= 2) {
    if (thread < width) {
      shared.maxima[thread] = maximum_of(shared.maxima[thread + width], shared.maxima[thread]);
    }
    __syncthreads();
  }
  // No -0, which would depend on the order.
  return shared.maxima[0] + 0.0f;
}

// The lanes of a thread in its block of terms, which starts at element `first`.
template <class Term, class T>
HOST_DEVICE void add_terms(const T* logits, const float* weights, int count, int64_t first,
                           float maximum, float (&sums)[kWidth]) {
  const bool is_aligned_row = is_aligned(logits);
  for (int line = 0; line < kTermLines; ++line) {
    if (first + line * kNormLanes >= count) break;
    const int offset = static_cast<int>(first) + line * kNormLanes;
    const Pack<T> pack = load_lanes(logits, count, offset, is_aligned_row);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (offset + k < count) {
        const float weight = Term::kIsWeighted ? load_one(weights + offset + k) : 1.0f;
        sums[k] += Term::of(widen(pack.get(k)), maximum, weight);
      }
    }
  }
}

// The first thread gets the sum of the terms of a row.
template <class Term, class T>
__device__ inline double row_sum(const T* logits, const float* weights, int count, float maximum,
                                 RowShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int block = thread / kThreadsPerTermBlock;
  const int lane = thread % kThreadsPerTermBlock * kWidth;
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kTermSweep) {
    float sums[kWidth] = {};
    add_terms<Term>(logits, weights, count, begin + block * kTermBlock + lane, maximum, sums);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shared.lanes[block][lane + k] = sums[k];
    __syncthreads();
    for (int width = kNormLanes / 2; width > 0; width /= 2) {
      for (int i = thread; i < kTermBlocks * width; i += kRowThreads) {
        shared.lanes[i / width][i % width] += shared.lanes[i / width][i % width + width];
      }
      __syncthreads();
    }
    if (thread == 0) {
      for (int k = 0; k < kTermBlocks; ++k) sum += static_cast<double>(shared.lanes[k][0]);
    }
    __syncthreads();
  }
  return sum;
}

// The first thread gets the loss of a row, the others nothing.
template <class T>
__device__ inline RowLoss forward_row(const CrossEntropyInputs& inputs, const T* logits,
                                      int64_t target, RowShared& shared) {
  const int count = static_cast<int>(inputs.num_classes);
  const float* weights = inputs.class_weights;
  const float maximum = row_maximum(logits, count, shared);
  RowSums sums = {};
  sums.exponentials = row_sum<ExponentialTerm>(logits, weights, count, maximum, shared);
  if (inputs.uniform_share != 0.0f && weights == nullptr) {
    sums.distances = row_sum<DistanceTerm<false>>(logits, weights, count, maximum, shared);
    sums.weights = static_cast<double>(count);
  } else if (inputs.uniform_share != 0.0f) {
    sums.distances = row_sum<DistanceTerm<true>>(logits, weights, count, maximum, shared);
    sums.weights = row_sum<WeightTerm>(logits, weights, count, maximum, shared);
  }
  // Double precision is slow on many GPUs: one thread of 256 is enough.
  if (threadIdx.x != 0) return RowLoss{};
  return row_loss(inputs, target_of(inputs, logits, target), maximum, sums);
}

template <class T>
static __global__ void __launch_bounds__(kRowThreads)
    cross_entropy_forward_kernel(CrossEntropyInputs inputs, float* losses,
                                 RowStatistics* statistics) {
  __shared__ RowShared shared;
  for (int64_t index = blockIdx.x; index < inputs.num_rows; index += gridDim.x) {
    const int64_t target = inputs.targets[index];
    RowLoss row = {};
    if (target != inputs.ignore_index) {
      check_target(inputs, target);
      row = forward_row(inputs, row_of<T>(inputs, index), target, shared);
    }
    if (threadIdx.x == 0) {
      losses[index] = row.loss;
      statistics[index] = row.statistics;
    }
  }
}

// What is written where no logit counts: zeros, or NaNs.
template <class T>
__device__ inline void fill_row(T* to, int count, float value) {
  Pack<T> pack;
  pack.clear();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) pack.set(k, from_float<T>(value));
  const int num_packed = is_aligned(to) ? count / kWidth * kWidth : 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread * kWidth; i < num_packed; i += kRowThreads * kWidth) {
    store_pack(pack, to + i);
  }
  for (int64_t i = num_packed + thread; i < count; i += kRowThreads) {
    store_one(from_float<T>(value), to + i);
  }
}

template <class T>
__device__ inline void class_gradients(const T* logits, const float* weights, int count,
                                       const RowGradient& row, T* to) {
  const float negative_offset = 0.0f - row.offset;
  const auto gradient = [&](T logit, int64_t i) {
    const float weight = weights == nullptr ? 1.0f : load_one(weights + i);
    return narrow<T>(
        class_gradient(widen(logit), row.maximum, row.factor, negative_offset * weight));
  };
  const int num_packed = is_aligned(logits) && is_aligned(to) ? count / kWidth * kWidth : 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread * kWidth; i < num_packed; i += kRowThreads * kWidth) {
    Pack<T> pack = load_pack(logits + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pack.set(k, gradient(pack.get(k), i + k));
    store_pack(pack, to + i);
  }
  for (int64_t i = num_packed + thread; i < count; i += kRowThreads) {
    store_one(gradient(load_one(logits + i), i), to + i);
  }
}

template <class T>
static __global__ void __launch_bounds__(kRowThreads)
    cross_entropy_backward_kernel(CrossEntropyInputs inputs, const RowStatistics* statistics,
                                  const float* gradients, T* results) {
  const int count = static_cast<int>(inputs.num_classes);
  for (int64_t index = blockIdx.x; index < inputs.num_rows; index += gridDim.x) {
    const int64_t target = inputs.targets[index];
    T* to = results + index * inputs.num_classes;
    if (target == inputs.ignore_index) {
      fill_row(to, count, 0.0f);
      continue;
    }
    check_target(inputs, target);
    const T* logits = row_of<T>(inputs, index);
    const RowGradient row = row_gradient(inputs, statistics[index], gradients[index]);
    if (row.factor != row.factor) {
      fill_row(to, count, canonical_nan());
      continue;
    }
    const float* weights = inputs.uniform_share == 0.0f ? nullptr : inputs.class_weights;
    class_gradients(logits, weights, count, row, to);
    __syncthreads();
    if (threadIdx.x == 0) {
      const RowTarget at_target = target_of(inputs, logits, target);
      const float gradient =
          target_gradient(inputs, at_target, statistics[index], gradients[index]);
      store_one(narrow<T>(gradient), to + target);
    }
  }
}

}  // namespace lightning_mp::cuda

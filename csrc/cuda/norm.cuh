// Sums of squares, in the order of functors/norm.h.
#pragma once

#include "common/found_inf.h"
#include "cuda/chunks.cuh"
#include "functors/norm.h"

namespace lightning_mp::cuda {

constexpr int kNormBlocks = static_cast<int>(kNormChunk / kNormBlock);
constexpr int kThreadsPerNormBlock = kNormLanes / kWidth;
constexpr int kNormThreads = kNormBlocks * kThreadsPerNormBlock;
// Lines of lanes that are on their way from memory at the same time.
constexpr int kLinesInFlight = 4;
constexpr int kNormLines = static_cast<int>(kNormBlock) / kNormLanes;

// What a block of threads shares while it sums a chunk.
struct NormSums {
  float lanes[kNormBlocks][kNormLanes];
  double exact_lanes[kNormLanes];
  double blocks[kNormBlocks];
  int is_nonzero[kNormBlocks];
  int is_exact[kNormBlocks];
};

struct LaneSums {
  float sums[kWidth];
  uint32_t any_bit;
};

// `first` is the thread's element in the first line of its block of the chunk.
template <class T>
HOST_DEVICE void sum_lines(const T* chunk, int count, int first, LaneSums& result) {
  const bool is_aligned_row = is_aligned(chunk);
  for (int line = 0; line < kNormLines; line += kLinesInFlight) {
    const int offset = first + line * kNormLanes;
    if (offset >= count) break;
    Pack<T> packs[kLinesInFlight];
#pragma unroll
    for (int k = 0; k < kLinesInFlight; ++k) {
      packs[k] = load_lanes(chunk, count, offset + k * kNormLanes, is_aligned_row);
    }
#pragma unroll
    for (int k = 0; k < kLinesInFlight; ++k) {
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        const float value = widen(packs[k].get(lane));
        result.any_bit |= bits_of(value);
        result.sums[lane] = multiply_add(value, value, result.sums[lane]);
      }
    }
  }
}

template <class T>
__device__ inline void sum_fast_blocks(const T* chunk, int count, NormSums& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int block = thread / kThreadsPerNormBlock;
  const int lane = thread % kThreadsPerNormBlock * kWidth;
  LaneSums result = {};
  sum_lines(chunk, count, block * static_cast<int>(kNormBlock) + lane, result);
  if (thread < kNormBlocks) shared.is_nonzero[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) shared.lanes[block][lane + k] = result.sums[k];
  if (result.any_bit & kMagnitudeMask) shared.is_nonzero[block] = 1;
  __syncthreads();
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int i = thread; i < kNormBlocks * width; i += kNormThreads) {
      shared.lanes[i / width][i % width] += shared.lanes[i / width][i % width + width];
    }
    __syncthreads();
  }
  if (thread < kNormBlocks) {
    const float sum = shared.lanes[thread][0];
    shared.blocks[thread] = static_cast<double>(sum);
    // Blocks of zeros, such as the gradients of unused rows of an embedding, are common.
    shared.is_exact[thread] =
        is_doubtful_sum(sum) && (sum != 0.0f || shared.is_nonzero[thread]) ? 1 : 0;
  }
  __syncthreads();
}

// Sums a block whose FP32 sum is in doubt again, by lanes in double.
template <class T>
__device__ inline void sum_exact_block(const T* chunk, int count, int block, NormSums& shared,
                                       float* found_inf) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kNormLanes) {
    const int begin = block * static_cast<int>(kNormBlock);
    const int end = begin + static_cast<int>(kNormBlock);
    double sum = 0.0;
    for (int i = begin + thread; i < end && i < count; i += kNormLanes) {
      const float value = widen(load_one(chunk + i));
      // Every thread that gets here writes the same.
      if (!is_finite(value) && found_inf != nullptr) *found_inf = 1.0f;
      sum = add_square(value, sum);
    }
    shared.exact_lanes[thread] = sum;
  }
  __syncthreads();
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    if (thread < width) shared.exact_lanes[thread] += shared.exact_lanes[thread + width];
    __syncthreads();
  }
  if (thread == 0) shared.blocks[block] = shared.exact_lanes[0];
  __syncthreads();
}

// Writes the sum of each chunk to partials[chunk]. The table's chunks have kNormChunk elements.
static __global__ void __launch_bounds__(kNormThreads)
    sum_of_squares_kernel(DeviceTable table, int role, double* partials, FoundInf found_inf) {
  __shared__ NormSums shared;
  for (int64_t index = blockIdx.x; index < table.num_chunks; index += gridDim.x) {
    const Chunk chunk = find_chunk(table, index, kNormChunk);
    const TensorRow& row = table.rows[chunk.row];
    with_type(row.dtypes[role], [&](auto type) {
      const auto* from = static_cast<const decltype(type)*>(row.tensors[role]) + chunk.begin;
      sum_fast_blocks(from, chunk.count, shared);
      for (int block = 0; block < kNormBlocks; ++block) {
        if (shared.is_exact[block]) {
          sum_exact_block(from, chunk.count, block, shared, found_inf.of(chunk.row));
        }
      }
    });
    if (threadIdx.x == 0) {
      double sum = 0.0;
      for (int block = 0; block < kNormBlocks; ++block) sum += shared.blocks[block];
      partials[index] = sum;
    }
    __syncthreads();
  }
}

// Sums partials[begin, end) with kPartialLanes threads; all of them get the sum.
__device__ inline double sum_partials(const double* partials, int64_t begin, int64_t end,
                                      double* lanes) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  for (int64_t i = begin + thread; i < end; i += kPartialLanes) sum += partials[i];
  lanes[thread] = sum;
  __syncthreads();
  for (int width = kPartialLanes / 2; width > 0; width /= 2) {
    if (thread < width) lanes[thread] += lanes[thread + width];
    __syncthreads();
  }
  return lanes[0];
}

static __global__ void __launch_bounds__(kPartialLanes)
    gradient_stats_kernel(const double* partials, int64_t num_partials, const float* inv_scale,
                          bool has_max_norm, float max_norm, float* norm, float* factor) {
  __shared__ double lanes[kPartialLanes];
  const double sum = sum_partials(partials, 0, num_partials, lanes);
  if (threadIdx.x == 0) {
    const NormAndFactor result =
        norm_and_factor(sum, inv_scale == nullptr ? 1.0f : *inv_scale, has_max_norm, max_norm);
    *norm = result.norm;
    *factor = result.factor;
  }
}

// One block of threads for each row, if `each` is there, and one for all of them.
static __global__ void __launch_bounds__(kPartialLanes)
    norms_kernel(DeviceTable table, const double* partials, float* total, float* each) {
  __shared__ double lanes[kPartialLanes];
  const int64_t first_row = each == nullptr ? table.num_rows : 0;
  for (int64_t row = first_row + blockIdx.x; row <= table.num_rows; row += gridDim.x) {
    const bool is_total = row == table.num_rows;
    const int64_t begin = is_total ? 0 : table.first_chunks[row];
    const int64_t end = row + 1 < table.num_rows ? table.first_chunks[row + 1] : table.num_chunks;
    const double sum = sum_partials(partials, begin, end, lanes);
    if (threadIdx.x == 0) {
      *(is_total ? total : each + row) = static_cast<float>(square_root(sum));
    }
    __syncthreads();
  }
}

}  // namespace lightning_mp::cuda

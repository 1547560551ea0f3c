// The chunks of a table of rows.
#pragma once

#include "cuda/device_table.h"
#include "cuda/platform.cuh"
#include "cuda/vectors.cuh"

namespace lightning_mp::cuda {

struct Chunk {
  int64_t row;
  // Elements of the row.
  int64_t begin;
  int count;
};

// Binary search: the last row with first_chunks[row] <= chunk, which has elements.
HOST_DEVICE Chunk find_chunk(const DeviceTable& table, int64_t chunk, int64_t chunk_size) {
  int64_t low = 0;
  int64_t high = table.num_rows;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (table.first_chunks[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t begin = (chunk - table.first_chunks[low]) * chunk_size;
  const int64_t left = table.rows[low].numel - begin;
  return Chunk{low, begin, static_cast<int>(left < chunk_size ? left : chunk_size)};
}

// Elements of a chunk that threads handle eight at a time: those of all whole packs, if the tensors
// of the row lie at multiples of 16 bytes.
HOST_DEVICE int num_packed(const Chunk& chunk, bool is_aligned_row) {
  return is_aligned_row ? chunk.count / kWidth * kWidth : 0;
}

// Calls function(i) for the packs of a chunk, which start at element i of the row.
template <class Function>
HOST_DEVICE void for_each_eight(const Chunk& chunk, bool is_aligned_row, const Function& function) {
  const int stride = static_cast<int>(blockDim.x) * kWidth;
  const int end = num_packed(chunk, is_aligned_row);
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < end; i += stride) {
    function(chunk.begin + i);
  }
}

// Calls function(i) for what the packs leave.
template <class Function>
HOST_DEVICE void for_each_one(const Chunk& chunk, bool is_aligned_row, const Function& function) {
  const int begin = num_packed(chunk, is_aligned_row) + static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int i = begin; i < chunk.count; i += static_cast<int>(blockDim.x)) {
    function(chunk.begin + i);
  }
}

}  // namespace lightning_mp::cuda

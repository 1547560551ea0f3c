// Memory of a device of the host: blocks that are kept for reuse, a hard limit, statistics.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fl/memory/address_range.h"

namespace lightning_mp::fl {

struct PoolStatistics {
  int64_t allocated_bytes = 0;  // of blocks in use, rounded up to their size class
  int64_t peak_allocated_bytes = 0;
  int64_t requested_bytes = 0;  // of blocks in use, as asked for
  int64_t reserved_bytes = 0;   // in use or kept for reuse
  int64_t peak_reserved_bytes = 0;
  int64_t num_allocs = 0;
  int64_t num_frees = 0;
  int64_t num_host_allocs = 0;  // blocks that came from the host, not from the cache
  int64_t num_retries = 0;      // times that the cache was emptied because the limit was reached
  int64_t num_ooms = 0;
};

class Pool {
 public:
  // A limit below 0 is none. The alignment is a power of two, at least 64 bytes.
  Pool(int device_index, int64_t limit_bytes, int64_t alignment_bytes);
  ~Pool();

  // Raises torch.OutOfMemoryError; null for no bytes.
  void* allocate(size_t num_bytes);
  // Of any pool, on any thread; what the pointer belongs to is written before it.
  static void free(void* data);

  void empty_cache();
  PoolStatistics statistics();
  void reset_peaks();

  int64_t limit_bytes() const { return limit_bytes_; }

  bool owns(const void* pointer) const { return range_.contains(pointer); }

  // Allocates host memory, for storages of the CPU.
  c10::Allocator& allocator() { return *allocator_; }

  // So that a fork finds no pool in the middle of something.
  std::mutex& mutex() { return mutex_; }

 private:
  struct Block;
  static constexpr size_t kNumClasses = 512;

  Block* take_cached(size_t size_class);
  Block* take_from_host(size_t size_class, size_t num_bytes, size_t num_requested);
  Block* make_block(size_t num_bytes);
  void release_cached();
  [[noreturn]] void out_of_memory(size_t num_requested, const char* reason);

  const int device_index_;
  const int64_t limit_bytes_;
  const size_t alignment_;
  std::mutex mutex_;
  AddressRange range_;
  PoolStatistics statistics_;
  std::array<std::vector<Block*>, kNumClasses> cached_;
  std::unique_ptr<c10::Allocator> allocator_;
};

}  // namespace lightning_mp::fl

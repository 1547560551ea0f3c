#include "fl/memory/pool.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace lightning_mp::fl {

// Stands right before the data that it describes.
struct alignas(64) Pool::Block {
  Pool* owner;
  size_t size_class;
  size_t num_bytes;
  size_t num_requested;
  bool is_released;  // the host has the memory back, the addresses are kept

  void* data() { return this + 1; }

  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
};

namespace {

constexpr size_t kSmallStep = 64;
constexpr size_t kLargestSmall = 512;

struct SizeClass {
  size_t index;
  size_t num_bytes;
};

// Multiples of 64 bytes up to 512; above, 8 steps for each power of two, so that at most an eighth
// of a block is unused.
SizeClass size_class_of(size_t num_bytes) {
  if (num_bytes <= kLargestSmall) {
    const size_t index = (num_bytes + kSmallStep - 1) / kSmallStep;
    return {index, index * kSmallStep};
  }
  const int exponent = 63 - __builtin_clzll(num_bytes - 1);
  const size_t step = size_t{1} << (exponent - 3);
  const size_t num_steps = (num_bytes + step - 1) / step;  // 9 to 16
  return {static_cast<size_t>(exponent - 8) * 8 + num_steps - 8, num_steps * step};
}

std::string in_mib(int64_t num_bytes) {
  std::string text = std::to_string(static_cast<double>(num_bytes) / (1 << 20));
  return text.substr(0, text.find('.') + 3) + " MiB";
}

void free_block(void* data) { Pool::free(data); }

class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(Pool& pool) : pool_(pool) {}

  c10::DataPtr allocate(size_t num_bytes) override {
    void* const data = pool_.allocate(num_bytes);
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    default_copy_data(target, source, num_bytes);
  }

 private:
  Pool& pool_;
};

}  // namespace

Pool::Pool(int device_index, int64_t limit_bytes, int64_t alignment_bytes)
    : device_index_(device_index),
      limit_bytes_(limit_bytes),
      alignment_(std::max(sizeof(Block), static_cast<size_t>(alignment_bytes))),
      allocator_(std::make_unique<PoolAllocator>(*this)) {}

Pool::~Pool() = default;

void* Pool::allocate(size_t num_bytes) {
  if (num_bytes == 0) return nullptr;
  // Sizes this large come from overflown products; they have no size class.
  const bool is_absurd = num_bytes > size_t{1} << 48;
  const SizeClass size_class = is_absurd ? SizeClass{0, num_bytes} : size_class_of(num_bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_absurd) out_of_memory(num_bytes, "no device has so much");
  Block* block = take_cached(size_class.index);
  if (block == nullptr) {
    block = take_from_host(size_class.index, size_class.num_bytes, num_bytes);
  }
  block->num_requested = num_bytes;
  PoolStatistics& now = statistics_;
  ++now.num_allocs;
  now.requested_bytes += static_cast<int64_t>(num_bytes);
  now.allocated_bytes += static_cast<int64_t>(block->num_bytes);
  now.peak_allocated_bytes = std::max(now.peak_allocated_bytes, now.allocated_bytes);
  return block->data();
}

void Pool::free(void* data) {
  if (data == nullptr) return;
  Block* const block = Block::of(data);
  Pool& pool = *block->owner;
  const std::lock_guard<std::mutex> lock(pool.mutex_);
  pool.cached_[block->size_class].push_back(block);
  PoolStatistics& now = pool.statistics_;
  ++now.num_frees;
  now.requested_bytes -= static_cast<int64_t>(block->num_requested);
  now.allocated_bytes -= static_cast<int64_t>(block->num_bytes);
}

Pool::Block* Pool::take_cached(size_t size_class) {
  std::vector<Block*>& blocks = cached_[size_class];
  // Released blocks are below all others: what is freed later goes on top.
  if (blocks.empty() || blocks.back()->is_released) return nullptr;
  Block* const block = blocks.back();
  blocks.pop_back();
  return block;
}

Pool::Block* Pool::take_from_host(size_t size_class, size_t num_bytes, size_t num_requested) {
  const auto size = static_cast<int64_t>(num_bytes);
  const auto is_full = [&] {
    return limit_bytes_ >= 0 && statistics_.reserved_bytes + size > limit_bytes_;
  };
  if (is_full()) {
    ++statistics_.num_retries;
    release_cached();
  }
  if (is_full()) out_of_memory(num_requested, "the limit of the device is reached");
  std::vector<Block*>& blocks = cached_[size_class];
  Block* block = nullptr;
  if (blocks.empty()) {
    block = make_block(num_bytes);
    if (block == nullptr) out_of_memory(num_requested, "the host has no memory left");
    block->owner = this;
    block->size_class = size_class;
    block->num_bytes = num_bytes;
  } else {
    block = blocks.back();
    blocks.pop_back();
  }
  block->is_released = false;
  ++statistics_.num_host_allocs;
  statistics_.reserved_bytes += size;
  statistics_.peak_reserved_bytes =
      std::max(statistics_.peak_reserved_bytes, statistics_.reserved_bytes);
  return block;
}

Pool::Block* Pool::make_block(size_t num_bytes) {
  const size_t stride = (alignment_ + num_bytes + alignment_ - 1) / alignment_ * alignment_;
  char* const begin = static_cast<char*>(range_.take(stride));
  if (begin == nullptr) return nullptr;
  return new (Block::of(begin + alignment_)) Block{};
}

void Pool::release_cached() {
  for (std::vector<Block*>& blocks : cached_) {
    for (Block* const block : blocks) {
      if (block->is_released) continue;
      block->is_released = true;
      statistics_.reserved_bytes -= static_cast<int64_t>(block->num_bytes);
      AddressRange::drop(block->data(), block->num_bytes);
    }
  }
}

void Pool::out_of_memory(size_t num_requested, const char* reason) {
  ++statistics_.num_ooms;
  const std::string limit = limit_bytes_ < 0 ? "none" : in_mib(limit_bytes_);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "allocation on fl:", device_index_, " = ",
                   in_mib(static_cast<int64_t>(num_requested)), "; ", reason, ": limit ", limit,
                   ", in use ", in_mib(statistics_.allocated_bytes), ", kept for reuse ",
                   in_mib(statistics_.reserved_bytes - statistics_.allocated_bytes),
                   "; use less memory, or raise memory_fraction of the device");
}

void Pool::empty_cache() {
  const std::lock_guard<std::mutex> lock(mutex_);
  release_cached();
}

PoolStatistics Pool::statistics() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

void Pool::reset_peaks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  statistics_.peak_allocated_bytes = statistics_.allocated_bytes;
  statistics_.peak_reserved_bytes = statistics_.reserved_bytes;
}

}  // namespace lightning_mp::fl

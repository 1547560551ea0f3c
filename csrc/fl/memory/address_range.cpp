#include "fl/memory/address_range.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace lightning_mp::fl {
namespace {

constexpr size_t kLargest = size_t{1} << 38;   // 256 GiB
constexpr size_t kSmallest = size_t{1} << 30;  // 1 GiB
constexpr size_t kCommitStep = size_t{1} << 25;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

AddressRange::AddressRange() {
  // Addresses that cannot be read or written cost nothing, not even where the host refuses to
  // promise more memory than it has. A limit on addresses (ulimit -v) may ask for a smaller range.
  for (size_t size = kLargest; size >= kSmallest && base_ == nullptr; size /= 4) {
    void* const base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) continue;
    base_ = static_cast<char*>(base);
    size_ = size;
  }
  TORCH_CHECK(base_ != nullptr, "addresses for a device of fl = refused by the host, down to ",
              kSmallest >> 30, " GiB; raise the limit on addresses of a process (ulimit -v)");
}

void* AddressRange::take(size_t num_bytes) {
  if (num_bytes > size_ - num_taken_) return nullptr;
  const size_t needed = num_taken_ + num_bytes;
  if (needed > num_committed_) {
    const size_t end = std::min(size_, round_up(needed, kCommitStep));
    const int failed =
        mprotect(base_ + num_committed_, end - num_committed_, PROT_READ | PROT_WRITE);
    if (failed != 0) return nullptr;
    num_committed_ = end;
  }
  void* const taken = base_ + num_taken_;
  num_taken_ = needed;
  return taken;
}

void AddressRange::drop(void* begin, size_t num_bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = round_up(address, page);
  const uintptr_t end = (address + num_bytes) / page * page;
  if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace lightning_mp::fl

// A range of addresses that is reserved at once and backed by memory as it is used, so that to ask
// whether a pointer belongs to a device is a comparison.
#pragma once

#include <cstddef>

namespace lightning_mp::fl {

class AddressRange {
 public:
  AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  // The next num_bytes of the range, or null if it is used up or the host has no memory left. What
  // is taken is never given back; drop() frees the memory under it. Not safe for threads.
  void* take(size_t num_bytes);

  // Give the whole pages within a part back to the host; they read as zeros from then on.
  static void drop(void* begin, size_t num_bytes);

  bool contains(const void* pointer) const {
    const char* const byte = static_cast<const char*>(pointer);
    return byte >= base_ && byte < base_ + size_;
  }

 private:
  char* base_ = nullptr;
  size_t size_ = 0;
  size_t num_committed_ = 0;
  size_t num_taken_ = 0;
};

}  // namespace lightning_mp::fl

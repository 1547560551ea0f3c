// Memory of devices for native callers that do not know torch. It counts and is limited like that
// of tensors.
//
//   void* fl_malloc(size_t num_bytes, int device_index);  // null if there is none
//   void fl_free(void* data);                             // null, and what is not ours, is ignored
//   int fl_owner(const void* data);                       // id of the device, or -1
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "fl/memory/allocators.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

struct Block {
  c10::DataPtr pointer;
  int device_index;
};

std::mutex& blocks_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// Blocks that were handed out. Never destroyed, as the pools are not.
std::unordered_map<const void*, Block>& blocks() {
  static auto* const all = new std::unordered_map<const void*, Block>;
  return *all;
}

void* allocate(size_t num_bytes, int index) {
  const Device& device = device_at(index);
  const c10::OptionalDeviceGuard guard(device.is_host() ? std::optional<c10::Device>()
                                                        : device.spec.native);
  c10::DataPtr pointer = device.native_allocator->allocate(num_bytes);
  void* const data = pointer.get();
  const std::lock_guard<std::mutex> lock(blocks_mutex());
  if (data != nullptr) blocks().insert_or_assign(data, Block{std::move(pointer), index});
  return data;
}

}  // namespace
}  // namespace lightning_mp::fl

namespace fl = lightning_mp::fl;

extern "C" {

__attribute__((visibility("default"))) void* fl_malloc(size_t num_bytes, int device_index) {
  if (!fl::has_device(device_index)) return nullptr;
  try {
    return fl::allocate(num_bytes, device_index);
  } catch (const c10::Error&) {  // out of memory; callers in C have no exceptions
    return nullptr;
  }
}

__attribute__((visibility("default"))) void fl_free(void* data) {
  const std::lock_guard<std::mutex> lock(fl::blocks_mutex());
  fl::blocks().erase(data);
}

__attribute__((visibility("default"))) int fl_owner(const void* data) {
  {
    const std::lock_guard<std::mutex> lock(fl::blocks_mutex());
    const auto found = fl::blocks().find(data);
    if (found != fl::blocks().end()) return found->second.device_index;
  }
  return fl::owner_of(data);
}

}  // extern "C"

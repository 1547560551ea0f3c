// What torch calls for memory of fl, and for memory of the CPU while native code of fl runs.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace lightning_mp::fl {

struct Device;

// Allocates storages of fl: facades over memory of the native device.
std::unique_ptr<c10::Allocator> make_fl_allocator(const Device& device);

// Register the allocator of fl; from then on native code of a device of the host allocates from the
// pool of that device, so that temporaries are counted, limited and kept for reuse as well.
void install_allocators();

// Quantities in bytes and counts, by name.
std::map<std::string, int64_t> memory_statistics(const Device& device);
void reset_peak_memory(const Device& device);
void empty_cache(const Device& device);

// The device whose pool has the pointer, or -1.
int owner_of(const void* pointer);

}  // namespace lightning_mp::fl

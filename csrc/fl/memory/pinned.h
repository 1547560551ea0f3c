// Pinned host memory: that of the device underneath where there is one to copy to, else ordinary
// memory that is remembered, so that is_pinned() and DataLoader(pin_memory=True) work everywhere.
#pragma once

#include <c10/core/Allocator.h>

namespace lightning_mp::fl {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* pointer);

}  // namespace lightning_mp::fl

// What the library says of itself, for ctypes. No tensor is involved, so these are no operations.
#include <exception>
#include <string>

#include "cpu/isa.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

// A hash of the sources that this was built from.
EXPORTED const char* lightning_mp_source_digest() { return LIGHTNING_MP_SOURCE_DIGEST; }

// The instruction set in use, or why there is none.
EXPORTED const char* lightning_mp_isa() {
  try {
    return lightning_mp::cpu::isa_name(lightning_mp::cpu::active_isa());
  } catch (const std::exception& error) {
    static const std::string reason = error.what();
    return reason.c_str();
  }
}

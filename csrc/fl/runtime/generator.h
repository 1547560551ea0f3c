// Generators of fl: a generator of the device underneath, so that its numbers are that device's.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace lightning_mp::fl {

struct Device;

// A new generator of fl, with torch's default seed.
at::Generator make_generator(const Device& device);

// The generator that native code of this device takes for one that was passed to fl; the device's
// own if none was. A generator of another device is an error.
at::Generator native_generator(const std::optional<at::Generator>& generator, const Device& device);

}  // namespace lightning_mp::fl

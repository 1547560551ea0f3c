// A simulated device is as much slower as it declares: native code runs, then the thread spins.
#pragma once

#include <chrono>

#include "fl/runtime/device.h"

namespace lightning_mp::fl {

class Slowdown {
 public:
  explicit Slowdown(const Device& device)
      : factor_(device.spec.slowdown),
        start_(device.is_slowed() ? Clock::now() : Clock::time_point()) {}

  ~Slowdown() {
    if (factor_ <= 1.0) return;
    const Clock::duration elapsed = Clock::now() - start_;
    const auto end = start_ + std::chrono::duration_cast<Clock::duration>(elapsed * factor_);
    while (Clock::now() < end) {
    }
  }

  Slowdown(const Slowdown&) = delete;
  Slowdown& operator=(const Slowdown&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  const double factor_;
  const Clock::time_point start_;
};

}  // namespace lightning_mp::fl

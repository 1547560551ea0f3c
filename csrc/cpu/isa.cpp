#include "cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lightning_mp::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBase, Isa::kAvx2, Isa::kAvx512};

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return !has_avx2 ? Isa::kBase : !has_avx512 ? Isa::kAvx2 : Isa::kAvx512;
#else
  return Isa::kBase;
#endif
}

Isa chosen_isa() {
  const char* wanted = std::getenv("LIGHTNING_MP_ISA");
  if (wanted == nullptr || *wanted == '\0') return best_isa();
  for (Isa isa : kAll) {
    if (std::string(wanted) == isa_name(isa)) return std::min(isa, best_isa());
  }
  throw std::runtime_error("LIGHTNING_MP_ISA = '" + std::string(wanted) +
                           "'; base, avx2 or avx512 is allowed; unset it for the best one");
}

}  // namespace

Isa active_isa() {
  static const Isa isa = chosen_isa();
  return isa;
}

const char* isa_name(Isa isa) {
  return isa == Isa::kBase ? "base" : isa == Isa::kAvx2 ? "avx2" : "avx512";
}

}  // namespace lightning_mp::cpu

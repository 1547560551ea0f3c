#include "cpu/kernels.h"

namespace lightning_mp::cpu {

namespace base {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}

namespace avx512 {
extern const Kernels kKernels;
}
#endif

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kKernels;
  if (isa == Isa::kAvx2) return avx2::kKernels;
#else
  (void)isa;
#endif
  return base::kKernels;
}

}  // namespace lightning_mp::cpu

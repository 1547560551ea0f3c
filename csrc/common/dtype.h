// Element types that the kernels know.
#pragma once

#include <stdint.h>

#include "common/macros.h"

namespace lightning_mp {

// kNone is the type of what is not there, such as the half copy of a weight that has none.
enum class DType : int8_t {
  kNone = 0,
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6
};

HOST_DEVICE int64_t element_size(DType dtype) {
  return dtype == DType::kNone                                ? 0
         : dtype == DType::kInt64                             ? 8
         : dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4
                                                              : 2;
}

}  // namespace lightning_mp

// One row of a table of tensors: what a kernel does to one parameter.
#pragma once

#include <stdint.h>

#include "common/dtype.h"

namespace lightning_mp {

constexpr int kMaxTensors = 5;

// Which tensor of a row is what. Names of one operation share the numbers with another's.
enum StepRole { kGradient = 0, kWeight = 1, kCopy = 2, kFirstState = 3, kSecondState = 4 };

enum MapRole { kInput = 0, kSecondInput = 1, kOutput = 2 };

enum SplitRole { kWhole = 0, kHalf = 1, kRemainder = 2 };

// The tensors of a row have the same number of elements and the same memory layout: element i of
// one belongs to element i of the others. What a row lacks is null and kNone.
struct TensorRow {
  void* tensors[kMaxTensors];
  int64_t numel;
  // Number of elements in the rows before this one.
  int64_t first;
  DType dtypes[kMaxTensors];
};

}  // namespace lightning_mp

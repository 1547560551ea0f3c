// What a cross-entropy reads and keeps: plain data.
#pragma once

#include <stdint.h>

#include "common/dtype.h"

namespace lightning_mp {

// Half logits of num_rows rows and num_classes classes, and a class for each row.
struct CrossEntropyInputs {
  const void* logits;
  const int64_t* targets;
  // FP32, one per class; null for 1.
  const float* class_weights;
  int64_t num_rows;
  int64_t num_classes;
  // Elements from one row of logits to the next.
  int64_t row_stride;
  // Rows with this target count for nothing.
  int64_t ignore_index;
  // Of the weight of a row: what its target gets, and what each class gets. They are 1 and 0
  // without label smoothing.
  float target_share;
  float uniform_share;
  DType dtype;
};

// What backward has to know of a row: its largest logit, the sum of exp(logit - maximum), and the
// sum of the weights that its classes have in the loss. The logarithm of the sum is
// not kept with the maximum in one number: for large logits that has too few bits.
struct RowStatistics {
  float maximum;
  float sum;
  float weight;
};

}  // namespace lightning_mp

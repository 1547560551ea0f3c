// Cross-entropy of the rows of half logits.
#pragma once

#include "common/cross_entropy.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

// Writes loss and statistics of each row. Targets that are not ignored are classes.
void cross_entropy_forward(const CrossEntropyInputs& inputs, float* losses,
                           RowStatistics* statistics, Isa isa, const ParallelFor& parallel_for);

// Writes the gradients of the logits, rows one after the other, from those of the losses.
void cross_entropy_backward(const CrossEntropyInputs& inputs, const RowStatistics* statistics,
                            const float* gradients, void* results, Isa isa,
                            const ParallelFor& parallel_for);

}  // namespace lightning_mp::cpu

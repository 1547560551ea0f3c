// Operations over many tensors that read and write each element once.
#pragma once

#include "common/found_inf.h"
#include "common/row_table.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

// Outputs are inputs times `scale`. Notes rows with a result that is not finite before it is
// rounded to half.
void scale_copy(const RowTable& table, float scale, FoundInf found_inf, Isa isa,
                const ParallelFor& parallel_for);

// Outputs are a * x + b * y. Notes rows as scale_copy() does.
void axpby(const RowTable& table, float a, float b, FoundInf found_inf, Isa isa,
           const ParallelFor& parallel_for);

void split(const RowTable& table, Isa isa, const ParallelFor& parallel_for);

void join(const RowTable& table, Isa isa, const ParallelFor& parallel_for);

}  // namespace lightning_mp::cpu

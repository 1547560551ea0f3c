// Operations over many tensors that read and write each element once.
#pragma once

#include "common/row_table.h"
#include "cpu/isa.h"
#include "cpu/walk.h"

namespace lightning_mp::cpu {

// Outputs are inputs times `scale`. Returns whether all inputs are finite.
bool scale_copy(const RowTable& table, float scale, Isa isa, const ParallelFor& parallel_for);

// Outputs are a * x + b * y. Returns whether all inputs are finite.
bool axpby(const RowTable& table, float a, float b, Isa isa, const ParallelFor& parallel_for);

void split(const RowTable& table, Isa isa, const ParallelFor& parallel_for);

void join(const RowTable& table, Isa isa, const ParallelFor& parallel_for);

}  // namespace lightning_mp::cpu

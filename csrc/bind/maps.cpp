// lightning_mp::scale_copy_, axpby_, split_ and join_
#include "cpu/maps.h"

#include <torch/csrc/stable/library.h>

#include "bind/checks.h"
#include "bind/cpu_calls.h"
#include "bind/rows.h"

namespace lightning_mp::bind {
namespace {

void set_found_inf(const Tensor& found_inf, bool is_finite) {
  if (!is_finite) *found_inf.mutable_data_ptr<float>() = 1.0f;
}

void scale_copy_cpu(StableListHandle input_list, StableListHandle output_list, Tensor scale,
                    Tensor found_inf) {
  constexpr const char* kOp = "scale_copy_";
  const TensorHandles inputs(input_list), outputs(output_list);
  ScalarChecks scalars(kOp, inputs);
  scalars.check("scale", scale);
  scalars.check("found_inf", found_inf);
  StandIns stand_ins;
  const RowTable table = make_rows(kOp,
                                   {{"inputs", inputs, kInput, kFloating},
                                    {"outputs", outputs, kOutput, kFloating, false, true}},
                                   stand_ins);
  const float factor = *scale.const_data_ptr<float>();
  set_found_inf(found_inf, cpu::scale_copy(table, factor, cpu::active_isa(), torch_parallel_for()));
  stand_ins.write_back();
}

void axpby_cpu(StableListHandle x_list, StableListHandle y_list, StableListHandle output_list,
               double a, double b, Tensor found_inf) {
  constexpr const char* kOp = "axpby_";
  const TensorHandles x(x_list), y(y_list), outputs(output_list);
  ScalarChecks scalars(kOp, x);
  scalars.check("found_inf", found_inf);
  StandIns stand_ins;
  const RowTable table = make_rows(kOp,
                                   {{"x", x, kInput, kFloating},
                                    {"y", y, kSecondInput, kFloating},
                                    {"outputs", outputs, kOutput, kFloating, false, true}},
                                   stand_ins);
  set_found_inf(found_inf, cpu::axpby(table, static_cast<float>(a), static_cast<float>(b),
                                      cpu::active_isa(), torch_parallel_for()));
  stand_ins.write_back();
}

void split_cpu(StableListHandle source_list, StableListHandle half_list,
               StableListHandle remainder_list) {
  const TensorHandles sources(source_list), halves(half_list), remainders(remainder_list);
  StandIns stand_ins;
  const RowTable table =
      make_rows("split_",
                {{"sources", sources, kWhole, kFloat32Only},
                 {"halves", halves, kHalf, bit(DType::kBFloat16), false, true},
                 {"remainders", remainders, kRemainder, bit(DType::kInt16), false, true}},
                stand_ins);
  cpu::split(table, cpu::active_isa(), torch_parallel_for());
  stand_ins.write_back();
}

void join_cpu(StableListHandle half_list, StableListHandle remainder_list,
              StableListHandle output_list) {
  const TensorHandles halves(half_list), remainders(remainder_list), outputs(output_list);
  StandIns stand_ins;
  const RowTable table = make_rows("join_",
                                   {{"halves", halves, kHalf, bit(DType::kBFloat16)},
                                    {"remainders", remainders, kRemainder, bit(DType::kInt16)},
                                    {"outputs", outputs, kWhole, kFloat32Only, false, true}},
                                   stand_ins);
  cpu::join(table, cpu::active_isa(), torch_parallel_for());
  stand_ins.write_back();
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(lightning_mp, CPU, library) {
  library.impl("scale_copy_", TORCH_BOX(&scale_copy_cpu));
  library.impl("axpby_", TORCH_BOX(&axpby_cpu));
  library.impl("split_", TORCH_BOX(&split_cpu));
  library.impl("join_", TORCH_BOX(&join_cpu));
}

}  // namespace lightning_mp::bind

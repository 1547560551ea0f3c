// lightning_mp::scale_copy_, axpby_, split_ and join_ up to where a device runs them.
#pragma once

#include "bind/checks.h"
#include "bind/rows.h"

namespace lightning_mp::bind {

struct ScaleCopyCall {
  const RowTable& table;
  const Tensor& scale;
  FoundInf found_inf;
};

struct AxpbyCall {
  const RowTable& table;
  float a;
  float b;
  FoundInf found_inf;
  // Any tensor on the device.
  const Tensor& anchor;
};

struct SplitCall {
  const RowTable& table;
  const TensorHandles& sources;
};

struct JoinCall {
  const RowTable& table;
  const TensorHandles& halves;
};

template <void (*run)(const ScaleCopyCall&)>
void scale_copy(StableListHandle input_list, StableListHandle output_list, Tensor scale,
                Tensor found_inf) {
  constexpr const char* op = "scale_copy_";
  const TensorHandles inputs(input_list), outputs(output_list);
  ScalarChecks scalars(op, inputs);
  scalars.check("scale", scale);
  const FoundInf found = scalars.check_found_inf(found_inf, inputs.size());
  StandIns stand_ins;
  const RowTable table = make_rows(op,
                                   {{"inputs", inputs, kInput, kFloating},
                                    {"outputs", outputs, kOutput, kFloating, false, true}},
                                   stand_ins);
  run({table, scale, found});
  stand_ins.write_back();
}

template <void (*run)(const AxpbyCall&)>
void axpby(StableListHandle x_list, StableListHandle y_list, StableListHandle output_list, double a,
           double b, Tensor found_inf) {
  constexpr const char* op = "axpby_";
  const TensorHandles x(x_list), y(y_list), outputs(output_list);
  const FoundInf found = ScalarChecks(op, x).check_found_inf(found_inf, x.size());
  StandIns stand_ins;
  const RowTable table = make_rows(op,
                                   {{"x", x, kInput, kFloating},
                                    {"y", y, kSecondInput, kFloating},
                                    {"outputs", outputs, kOutput, kFloating, false, true}},
                                   stand_ins);
  run({table, static_cast<float>(a), static_cast<float>(b), found, found_inf});
  stand_ins.write_back();
}

template <void (*run)(const SplitCall&)>
void split(StableListHandle source_list, StableListHandle half_list,
           StableListHandle remainder_list) {
  const TensorHandles sources(source_list), halves(half_list), remainders(remainder_list);
  StandIns stand_ins;
  const RowTable table =
      make_rows("split_",
                {{"sources", sources, kWhole, kFloat32Only},
                 {"halves", halves, kHalf, bit(DType::kBFloat16), false, true},
                 {"remainders", remainders, kRemainder, bit(DType::kInt16), false, true}},
                stand_ins);
  run({table, sources});
  stand_ins.write_back();
}

template <void (*run)(const JoinCall&)>
void join(StableListHandle half_list, StableListHandle remainder_list,
          StableListHandle output_list) {
  const TensorHandles halves(half_list), remainders(remainder_list), outputs(output_list);
  StandIns stand_ins;
  const RowTable table = make_rows("join_",
                                   {{"halves", halves, kHalf, bit(DType::kBFloat16)},
                                    {"remainders", remainders, kRemainder, bit(DType::kInt16)},
                                    {"outputs", outputs, kWhole, kFloat32Only, false, true}},
                                   stand_ins);
  run({table, halves});
  stand_ins.write_back();
}

}  // namespace lightning_mp::bind

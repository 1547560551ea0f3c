// Runs the CPU kernels on buffers of exact size, for sanitizers, and compares every element with
// the rule for one float. Arguments: the instruction set. Prints what differs; returns whether it
// does.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "buffers.h"
#include "cpu/cross_entropy.h"
#include "cpu/kernels.h"
#include "cpu/maps.h"
#include "cpu/norm.h"
#include "cpu/steps.h"
#include "functors/norm.h"
#include "functors/split_master.h"
#include "functors/stochastic_rounding.h"

using namespace lightning_mp;

namespace {

int num_failures = 0;

void expect(bool is_met, const std::string& what) {
  if (is_met) return;
  ++num_failures;
  std::printf("%s\n", what.c_str());
}

constexpr DType kNone = DType::kNone;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kFp16 = DType::kFloat16;
constexpr DType kFp32 = DType::kFloat32;

const std::vector<int64_t> kSizes = {1, 7, 0, 31, 32, 33, 64, 103, 1031};
const std::vector<int64_t> kNormSizes = {1, 0, 63, 64, 4096, 4099, 70001};

struct Table {
  std::vector<std::unique_ptr<Buffer>> buffers;
  RowTable rows;

  // One row per size; remainders of split weights have the type int16.
  Table(const std::vector<DType>& dtypes, size_t shift,
        const std::vector<int64_t>& sizes = kSizes) {
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    for (int64_t numel : sizes) {
      TensorRow row = {};
      row.numel = numel;
      for (size_t role = 0; role < dtypes.size(); ++role) {
        const int64_t width = element_size(dtypes[role]);
        row.dtypes[role] = dtypes[role];
        if (width == 0) continue;
        buffers.push_back(std::make_unique<Buffer>(numel * width, shift * width));
        row.tensors[role] = buffers.back()->data;
        for (int64_t i = 0; i < numel; ++i) {
          const float value = normal(generator);
          // Second moments are not negative.
          const bool is_square = role == kSecondState;
          unsigned char* to = buffers.back()->data + i * width;
          if (dtypes[role] == DType::kInt16) {
            const uint16_t bits = static_cast<uint16_t>(generator());
            std::memcpy(to, &bits, 2);
          } else {
            store(dtypes[role], to, is_square ? value * value : value);
          }
        }
      }
      rows.add(row);
    }
  }

  bool equals(const Table& other) const {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i]->equals(*other.buffers[i])) return false;
    }
    return true;
  }
};

void store_state(DType dtype, unsigned char* to, float value, uint32_t chance) {
  if (dtype == DType::kBFloat16) {
    const uint16_t bits = static_cast<uint16_t>(rounded_to_upper(bits_of(value), chance) >> 16);
    std::memcpy(to, &bits, 2);
  } else {
    store(dtype, to, value);
  }
}

uint32_t random_of(const AdamScalars& scalars, int64_t i) {
  return random_words(static_cast<uint32_t>(i), scalars.rounding);
}

uint32_t random_of(const SgdScalars&, int64_t) { return 0; }

template <class Rule>
void step_element(const TensorRow& row, int64_t i, const typename Rule::Scalars& scalars,
                  StepOptions options) {
  const auto at = [&](int role) {
    return static_cast<unsigned char*>(row.tensors[role]) + i * element_size(row.dtypes[role]);
  };
  const bool is_split = row.dtypes[kWeight] == DType::kInt16;
  const DType copy = row.dtypes[kCopy];
  float weight;
  if (is_split) {
    SplitMaster master;
    std::memcpy(&master.half, at(kCopy), 2);
    std::memcpy(&master.remainder, at(kWeight), 2);
    weight = join_master(master.half, master.remainder);
  } else {
    weight = load(kFp32, at(kWeight));
    if (copy != kNone && options.adopt) {
      unsigned char rounded[4];
      store(copy, rounded, weight);
      if (std::memcmp(rounded, at(kCopy), 2) != 0) weight = load(copy, at(kCopy));
    }
  }
  float states[2] = {};
  for (int k = 0; k < Rule::kNumStates; ++k) {
    states[k] = load(row.dtypes[kFirstState + k], at(kFirstState + k));
  }
  Rule::step(load(row.dtypes[kGradient], at(kGradient)), weight, states, scalars);
  for (int k = 0; k < Rule::kNumStates; ++k) {
    store_state(row.dtypes[kFirstState + k], at(kFirstState + k), states[k],
                chance_of(random_of(scalars, i), k));
  }
  if (is_split) {
    const SplitMaster master = split_master(weight);
    std::memcpy(at(kCopy), &master.half, 2);
    std::memcpy(at(kWeight), &master.remainder, 2);
  } else {
    store(kFp32, at(kWeight), weight);
    if (copy != kNone) store(copy, at(kCopy), weight);
  }
  if (options.zero_gradients) store(row.dtypes[kGradient], at(kGradient), 0.0f);
}

// Two uneven shares, one after the other.
void in_two_parts(int64_t count, int64_t, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t middle = (count + 1) / 3;
  if (middle > 0) body(0, middle);
  if (count > middle) body(middle, count);
}

const cpu::ParallelFor kParallelFor = in_two_parts;

void test_steps(cpu::Isa isa, DType gradient, DType copy, bool is_split, size_t shift) {
  const DType weight = is_split ? DType::kInt16 : kFp32;
  for (int flags = 0; flags < 16; ++flags) {
    const bool is_decoupled = flags & 1;
    const StepOptions options = {(flags & 2) != 0, (flags & 4) != 0};
    const float bound = flags & 8 ? 0.5f : INFINITY;
    const std::string name = "gradient " + std::to_string(static_cast<int>(gradient)) + " copy " +
                             std::to_string(static_cast<int>(copy)) + " split " +
                             std::to_string(is_split) + " shift " + std::to_string(shift) +
                             " flags " + std::to_string(flags);
    for (DType state : {kFp32, kBf16}) {
      Table mine({gradient, weight, copy, state, state}, shift);
      const Table expected({gradient, weight, copy, state, state}, shift);
      const AdamParameters parameters = {0.9, 0.99, 1e-8, 0.1, is_decoupled, false, bound, 77};
      std::vector<float> steps(mine.rows.rows.size(), 6.0f);
      std::vector<float*> counters;
      for (float& step : steps) counters.push_back(&step);
      cpu::adam_step(mine.rows, counters, parameters, {1e-3, 0.37f, options, isa, kParallelFor});
      const AdamScalars scalars = adam_scalars(parameters, 1e-3, 7.0, 0.37f);
      for (const TensorRow& row : expected.rows.rows) {
        for (int64_t i = 0; i < row.numel; ++i) {
          if (is_decoupled) {
            step_element<AdamRule<true>>(row, i, scalars, options);
          } else {
            step_element<AdamRule<false>>(row, i, scalars, options);
          }
        }
      }
      expect(mine.equals(expected) && steps[0] == 7.0f,
             "adam " + name + " state " + std::to_string(static_cast<int>(state)));
    }
    for (double momentum : {0.0, 0.9}) {
      Table mine({gradient, weight, copy, kFp32}, shift);
      const Table expected({gradient, weight, copy, kFp32}, shift);
      const bool nesterov = flags & 1;
      const bool is_first = flags & 8;
      const SgdParameters parameters = {momentum, 0.1, 0.01, nesterov, true, is_first, bound};
      cpu::sgd_step(mine.rows, parameters, {1e-2, 0.37f, options, isa, kParallelFor});
      const SgdScalars scalars = sgd_scalars(parameters, 1e-2, 0.37f);
      for (const TensorRow& row : expected.rows.rows) {
        for (int64_t i = 0; i < row.numel; ++i) {
          if (momentum == 0.0) {
            step_element<PlainSgdRule>(row, i, scalars, options);
          } else if (nesterov) {
            step_element<MomentumSgdRule<true>>(row, i, scalars, options);
          } else {
            step_element<MomentumSgdRule<false>>(row, i, scalars, options);
          }
        }
      }
      expect(mine.equals(expected), "sgd " + name + " momentum " + std::to_string(momentum));
    }
  }
}

void test_norm(cpu::Isa isa, DType dtype, size_t shift) {
  const Table table({dtype}, shift, kNormSizes);
  double total = 0.0;
  Flags flags(table.rows);
  const cpu::SumsOfSquares sums =
      cpu::sums_of_squares(table.rows, 0, flags.found_inf(), isa, kParallelFor);
  for (size_t k = 0; k < table.rows.rows.size(); ++k) {
    const TensorRow& row = table.rows.rows[k];
    double exact = 0.0;
    for (int64_t i = 0; i < row.numel; ++i) {
      const auto* from = static_cast<unsigned char*>(row.tensors[0]) + i * element_size(dtype);
      exact += std::pow(static_cast<double>(load(dtype, from)), 2);
    }
    total += exact;
    expect(std::fabs(sums.each[k] - exact) <= 1e-5 * exact, "norm of row " + std::to_string(k));
  }
  expect(std::fabs(sums.total - total) <= 1e-5 * total && flags.set().empty(), "norm");
  for (size_t k = 0; k < table.rows.rows.size(); ++k) {
    const TensorRow& row = table.rows.rows[k];
    if (row.numel == 0) continue;
    for (int64_t i : {int64_t{0}, row.numel / 2, row.numel - 1}) {
      unsigned char* at = static_cast<unsigned char*>(row.tensors[0]) + i * element_size(dtype);
      const float old = load(dtype, at);
      for (float bad : {INFINITY, -INFINITY, NAN}) {
        store(dtype, at, bad);
        Flags found(table.rows);
        cpu::sums_of_squares(table.rows, 0, found.found_inf(), isa, kParallelFor);
        expect(found.set() == std::vector<size_t>{k},
               "missed at " + std::to_string(i) + " of " + std::to_string(row.numel));
      }
      store(dtype, at, old);
    }
  }
}

void test_maps(cpu::Isa isa, DType in, DType out, size_t shift) {
  const Table table({in, kFp32, out}, shift);
  const auto each = [&](auto&& expected, const char* name) {
    for (const TensorRow& row : table.rows.rows) {
      for (int64_t i = 0; i < row.numel; ++i) {
        const auto at = [&](int role) {
          return static_cast<unsigned char*>(row.tensors[role]) +
                 i * element_size(row.dtypes[role]);
        };
        unsigned char rounded[4];
        store(out, rounded, expected(load(in, at(kInput)), load(kFp32, at(kSecondInput))));
        expect(std::memcmp(rounded, at(kOutput), element_size(out)) == 0, name);
      }
    }
  };
  Flags flags(table.rows);
  cpu::scale_copy(table.rows, 0.37f, flags.found_inf(), isa, kParallelFor);
  each([](float x, float) { return x * 0.37f; }, "scale_copy");
  cpu::axpby(table.rows, 0.7f, -1.3f, flags.found_inf(), isa, kParallelFor);
  each([](float x, float y) { return std::fmaf(0.7f, x, -1.3f * y); }, "axpby");
  expect(flags.set().empty(), "finite");
  const TensorRow& last = table.rows.rows.back();
  store(in, static_cast<unsigned char*>(last.tensors[kInput]), INFINITY);
  const std::vector<size_t> expected = {table.rows.rows.size() - 1};
  cpu::scale_copy(table.rows, 0.37f, flags.found_inf(), isa, kParallelFor);
  expect(flags.set() == expected, "infinity in a copy");
  Flags of_sums(table.rows);
  cpu::axpby(table.rows, 0.7f, -1.3f, of_sums.found_inf(), isa, kParallelFor);
  expect(of_sums.set() == expected, "infinity in a sum");
}

void test_splits(cpu::Isa isa, size_t shift) {
  Table mine({kFp32, kBf16, DType::kInt16}, shift);
  const Table original({kFp32, kBf16, DType::kInt16}, shift);
  cpu::split(mine.rows, isa, kParallelFor);
  for (const TensorRow& row : mine.rows.rows) {
    for (int64_t i = 0; i < row.numel; ++i) {
      const SplitMaster master = split_master(static_cast<float*>(row.tensors[kWhole])[i]);
      expect(static_cast<BFloat16*>(row.tensors[kHalf])[i].bits == master.half.bits &&
                 static_cast<uint16_t*>(row.tensors[kRemainder])[i] == master.remainder,
             "split");
    }
    if (row.numel) std::memset(row.tensors[kWhole], 0, row.numel * sizeof(float));
  }
  cpu::join(mine.rows, isa, kParallelFor);
  for (size_t i = 0; i < mine.buffers.size(); i += 3) {
    expect(mine.buffers[i]->equals(*original.buffers[i]), "join");
  }
}

void test_cross_entropy(cpu::Isa isa, DType dtype, int64_t num_classes, size_t shift) {
  constexpr int64_t kRows = 5;
  const int64_t numel = kRows * num_classes;
  const Table logits({dtype, dtype}, shift, {numel});
  const Table weights({kFp32}, shift, {num_classes});
  const TensorRow& row = logits.rows.rows[0];
  const std::vector<int64_t> targets = {0, -1, num_classes - 1, num_classes / 2, -1};
  const std::vector<float> gradients(kRows, 3.0f);
  for (int flags = 0; flags < 4; ++flags) {
    const float smoothing = flags & 1 ? 0.1f : 0.0f;
    const float* class_weights =
        flags & 2 ? static_cast<float*>(weights.rows.rows[0].tensors[0]) : nullptr;
    const CrossEntropyInputs inputs = {row.tensors[0],
                                       targets.data(),
                                       class_weights,
                                       kRows,
                                       num_classes,
                                       num_classes,
                                       -1,
                                       1.0f - smoothing,
                                       smoothing / static_cast<float>(num_classes),
                                       dtype};
    std::vector<float> losses(kRows);
    std::vector<RowStatistics> statistics(kRows);
    cpu::cross_entropy_forward(inputs, losses.data(), statistics.data(), isa, kParallelFor);
    cpu::cross_entropy_backward(inputs, statistics.data(), gradients.data(), row.tensors[1], isa,
                                kParallelFor);
    for (int64_t i = 0; i < kRows; ++i) {
      const auto at = [&](int role, int64_t c) {
        return static_cast<double>(load(
            dtype, static_cast<unsigned char*>(row.tensors[role]) + (i * num_classes + c) * 2));
      };
      const auto share = [&](int64_t c) {
        const double weight = class_weights == nullptr ? 1.0 : class_weights[c];
        return weight * ((c == targets[i] ? 1.0 - smoothing : 0.0) + smoothing / num_classes);
      };
      double sum = 0.0, loss = 0.0, total = 0.0;
      for (int64_t c = 0; c < num_classes; ++c) sum += std::exp(at(0, c));
      for (int64_t c = 0; c < num_classes; ++c) {
        loss += share(c) * (std::log(sum) - at(0, c));
        total += share(c);
      }
      const double counted = targets[i] < 0 ? 0.0 : 1.0;
      const std::string name = " of row " + std::to_string(i) + " flags " + std::to_string(flags);
      expect(std::fabs(losses[i] - counted * loss) <= 1e-5, "cross-entropy" + name);
      for (int64_t c = 0; c < num_classes; ++c) {
        const double expected = 3.0 * counted * (std::exp(at(0, c)) / sum * total - share(c));
        expect(std::fabs(at(1, c) - expected) <= 0.005 * std::fabs(expected) + 1e-5,
               "gradient of class " + std::to_string(c) + name);
      }
    }
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string name = arguments[1];
  cpu::Isa isa = cpu::Isa::kBase;
  for (cpu::Isa candidate : {cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (name == cpu::isa_name(candidate)) isa = candidate;
  }
  if (isa > cpu::active_isa()) {
    std::printf("not on this machine\n");
    return 0;
  }
  for (size_t shift : {0, 1, 5}) {
    for (DType gradient : {kFp32, kBf16, kFp16}) {
      for (DType copy : {kNone, kBf16, kFp16}) test_steps(isa, gradient, copy, false, shift);
      test_steps(isa, gradient, kBf16, true, shift);
      test_norm(isa, gradient, shift);
      for (DType out : {kFp32, kBf16, kFp16}) test_maps(isa, gradient, out, shift);
    }
    test_splits(isa, shift);
    for (DType dtype : {kBf16, kFp16}) {
      for (int64_t num_classes : {1, 7, 64, 103, 1031, 2100}) {
        test_cross_entropy(isa, dtype, num_classes, shift);
      }
    }
  }
  std::printf("%d failures on %s\n", num_failures, cpu::isa_name(isa));
  return num_failures != 0;
}

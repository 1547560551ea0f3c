// Each operator is registered by name instead of through one fallback: an operator that has a
// composite implementation never reaches a fallback, and would be taken apart.
#include "fl/dispatch/registration.h"

#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fl/dispatch/boxed_call.h"

namespace lightning_mp::fl {
namespace {

using c10::DispatchKey;

// Operators that stay as torch composes them: they are about a tensor as an object, not its
// elements, or end in operators that are registered.
const std::unordered_set<std::string>& composed_operators() {
  static const auto* const names =
      new std::unordered_set<std::string>{"aten::_assert_async",
                                          "aten::_backward",
                                          "aten::_fw_primal",
                                          "aten::_make_dual",
                                          "aten::_nested_view_from_buffer",
                                          "aten::_pin_memory",
                                          "aten::_to_copy",
                                          "aten::_version",
                                          "aten::data",
                                          "aten::detach_",
                                          "aten::is_leaf",
                                          "aten::is_pinned",
                                          "aten::item",
                                          "aten::lift",
                                          "aten::lift_fresh",
                                          "aten::output_nr",
                                          "aten::requires_grad_",
                                          "aten::resize_as_sparse_",
                                          "aten::retain_grad",
                                          "aten::set_data"};
  return *names;
}

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(OperatorInfo* info) : info_(*info) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    call_boxed(info_, op, stack);
  }

 private:
  OperatorInfo& info_;
};

struct SchemaTraits {
  bool has_tensor = false;
  bool has_device = false;
  bool is_view = false;
};

SchemaTraits traits_of(const c10::FunctionSchema& schema) {
  SchemaTraits traits;
  for (const c10::Argument& argument : schema.arguments()) {
    const ArgumentKind kind = kind_of(argument.type());
    traits.has_device |= kind == ArgumentKind::kDevice;
    traits.has_tensor |= kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList ||
                         kind == ArgumentKind::kOptionalTensorList;
    traits.is_view |= argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  }
  return traits;
}

// Operators without a kernel of their own are left to autograd, which takes them apart; factories
// end in empty(); views share storage, for which the composite is right.
bool needs_kernel(const c10::OperatorHandle& op) {
  const bool is_explicit =
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  const bool has_cpu_kernel = op.hasKernelForDispatchKey(DispatchKey::CPU);
  if (!has_cpu_kernel && !is_explicit) return false;
  const SchemaTraits traits = traits_of(op.schema());
  if (traits.is_view) return false;
  return has_cpu_kernel || (traits.has_tensor && !traits.has_device);
}

// Operators of other libraries, which may come after us.
void call_other(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  static auto* const mutex = new std::shared_mutex;
  static auto* const known = new std::unordered_map<c10::OperatorName, OperatorInfo*>;
  OperatorInfo* info = nullptr;
  {
    const std::shared_lock<std::shared_mutex> lock(*mutex);
    const auto found = known->find(op.operator_name());
    if (found != known->end()) info = found->second;
  }
  if (info == nullptr) {
    const std::unique_lock<std::shared_mutex> lock(*mutex);
    OperatorInfo*& entry = (*known)[op.operator_name()];
    if (entry == nullptr) entry = add_operator_info(op);
    info = entry;
  }
  call_boxed(*info, op, stack);
}

}  // namespace

int register_boxed_kernels(torch::Library& aten) {
  const std::string prefix = "aten::";
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int num_registered = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(prefix, 0) != 0 || composed_operators().count(name.name) > 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    if (!needs_kernel(*op)) continue;
    OperatorInfo* const info = add_operator_info(*op);
    aten.impl(info->name.substr(prefix.size()).c_str(),
              torch::CppFunction::makeFromBoxedKernel(
                  c10::BoxedKernel::makeFromFunctor(std::make_unique<BoxedKernel>(info))));
    ++num_registered;
  }
  return num_registered;
}

void register_fallback(torch::Library& all) {
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&call_other>());
}

}  // namespace lightning_mp::fl

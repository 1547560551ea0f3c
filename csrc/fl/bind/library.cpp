// What Python and native callers see: a few C functions, and operators of lightning_mp_fl.
//
// Loading the library registers nothing: an error in the initialiser of a static object would end
// the process. lightning_mp_fl_define() registers the operators of our own namespace, and the
// operator activate() the device.
#include <torch/library.h>
#include <torch/version.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fl/dispatch/alias.h"
#include "fl/dispatch/generic_kernels.h"
#include "fl/dispatch/registration.h"
#include "fl/dispatch/routes.h"
#include "fl/memory/allocators.h"
#include "fl/operators/registration.h"
#include "fl/runtime/device.h"
#include "fl/runtime/guard.h"

namespace lightning_mp::fl {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<int64_t>;
using c10::DispatchKey;

// Never destroyed: what is registered stays for the life of the process.
torch::Library& implementations(const char* name_space, DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

void add_device_by_fields(int64_t index, std::string vendor, c10::Device native, std::string name,
                          std::string uid, bool is_simulated, int64_t limit_bytes,
                          int64_t alignment_bytes, Names dtypes, Names unsupported_operators,
                          double slowdown) {
  DeviceSpec spec;
  spec.index = static_cast<int>(index);
  spec.vendor = std::move(vendor);
  spec.native = native;
  spec.name = std::move(name);
  spec.uid = std::move(uid);
  spec.is_simulated = is_simulated;
  spec.limit_bytes = limit_bytes;
  spec.alignment_bytes = alignment_bytes;
  spec.dtypes = std::move(dtypes);
  spec.unsupported_operators.insert(unsupported_operators.begin(), unsupported_operators.end());
  spec.slowdown = slowdown;
  add_device(std::move(spec));
}

// Registers the device type, with the devices that were added. Returns the number of operators.
int64_t activate() {
  install_allocators();
  register_guard();
  register_hooks();
  torch::Library& aten = implementations("aten", DispatchKey::PrivateUse1);
  register_factories(aten);
  register_copies(aten);
  register_storage_setters(aten);
  register_views(aten);
  register_hot_operators(aten);
  register_attention();
  register_recurrent_cells();
  const int num_operators = register_boxed_kernels(aten);
  register_fallback(implementations("_", DispatchKey::PrivateUse1));
  implementations("_", DispatchKey::AutocastPrivateUse1)
      .fallback(torch::CppFunction::makeFallthrough());
  register_autocast(implementations("aten", DispatchKey::AutocastPrivateUse1));
  return num_operators;
}

const Device& checked_device(int64_t index) {
  return device_at(resolve_index(static_cast<c10::DeviceIndex>(index)));
}

at::Generator default_generator(int64_t index) { return checked_device(index).generator; }

c10::Dict<std::string, int64_t> memory_statistics_dict(int64_t index) {
  c10::Dict<std::string, int64_t> result;
  for (const auto& [name, value] : memory_statistics(checked_device(index))) {
    result.insert(name, value);
  }
  return result;
}

void empty_cache_of(int64_t index) { empty_cache(checked_device(index)); }

void reset_peak_memory_of(int64_t index) { reset_peak_memory(checked_device(index)); }

// Operators, routes, calls and copied bytes. Bytes are those of the CPU fallback.
std::tuple<Names, Names, Numbers, Numbers> counts(int64_t asked) {
  const int index = checked_device(asked).spec.index;
  std::tuple<Names, Names, Numbers, Numbers> result;
  auto& [names, routes, calls, copied_bytes] = result;
  for (const OperatorInfo* const info : all_operator_infos()) {
    for (int i = 0; i < kNumRoutes; ++i) {
      const auto route = static_cast<Route>(i);
      const int64_t num_calls = info->num_calls(index, route);
      if (num_calls == 0) continue;
      names.push_back(info->name);
      routes.emplace_back(route_name(route));
      calls.push_back(num_calls);
      copied_bytes.push_back(route == Route::kCpu ? info->num_copied_bytes(index) : 0);
    }
  }
  return result;
}

void reset_counts() {
  for (OperatorInfo* const info : all_operator_infos()) info->reset_counts();
}

void set_routes(bool has_cpu_fallback, bool has_generic_kernels, bool warns, Names denied,
                Names allowed) {
  RouteSettings settings;
  settings.has_cpu_fallback = has_cpu_fallback;
  settings.has_generic_kernels = has_generic_kernels;
  settings.warns = warns;
  settings.denied.insert(denied.begin(), denied.end());
  settings.allowed.insert(allowed.begin(), allowed.end());
  set_route_settings(std::move(settings));
}

std::string route_by_name(const std::string& op, int64_t index, at::ScalarType dtype) {
  const Device& device = checked_device(index);
  for (OperatorInfo* const info : all_operator_infos()) {
    if (info->name != op) continue;
    const size_t dot = op.find('.');
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
    return route_name(route_of(*info, *handle, device, dtype));
  }
  return "composed";  // torch takes it apart, or computes it without looking at elements
}

void define(torch::Library& library) {
  library.def(
      "add_device(int index, str vendor, Device native, str name, str uid, bool is_simulated, int "
      "limit_bytes, int alignment_bytes, str[] dtypes, str[] unsupported_operators, float "
      "slowdown) -> ()",
      add_device_by_fields);
  library.def("check_slot() -> ()", check_slot_is_free);
  library.def("activate() -> int", activate);
  library.def("default_generator(int index) -> Generator?", default_generator);
  library.def("to_native(Tensor tensor) -> Tensor", to_native);
  library.def("from_native(Tensor tensor, int index) -> Tensor", from_native);
  library.def("memory_statistics(int index) -> Dict(str, int)", memory_statistics_dict);
  library.def("reset_peak_memory(int index) -> ()", reset_peak_memory_of);
  library.def("empty_cache(int index) -> ()", empty_cache_of);
  library.def("counts(int index) -> (str[], str[], int[], int[])", counts);
  library.def("reset_counts() -> ()", reset_counts);
  library.def(
      "set_routes(bool has_cpu_fallback, bool has_generic_kernels, bool warns, str[] denied, str[] "
      "allowed) -> ()",
      set_routes);
  library.def("route(str op, int index, ScalarType dtype) -> str", route_by_name);
  library.def("add_generic_kernel(str op, str precision, str kernel) -> ()", add_generic_kernel);
  library.def("remove_generic_kernel(str op, str precision) -> ()", remove_generic_kernel);
  library.def("choose_precision(str precision) -> ()", choose_precision);
  define_recurrent_cells(library);
}

}  // namespace
}  // namespace lightning_mp::fl

extern "C" {

__attribute__((visibility("default"))) const char* lightning_mp_fl_torch_version() {
  return TORCH_VERSION;
}

__attribute__((visibility("default"))) const char* lightning_mp_fl_source_digest() {
  return LIGHTNING_MP_SOURCE_DIGEST;
}

// Returns an empty text, or what went wrong.
__attribute__((visibility("default"))) const char* lightning_mp_fl_define() {
  static std::string error;
  try {
    auto library = std::make_unique<torch::Library>(torch::Library::DEF, "lightning_mp_fl",
                                                    std::nullopt, __FILE__, __LINE__);
    lightning_mp::fl::define(*library);
    library.release();
  } catch (const std::exception& problem) {
    error = problem.what();
  }
  return error.c_str();
}

}  // extern "C"

#include "fl/dispatch/generic_kernels.h"

#include <map>
#include <mutex>
#include <shared_mutex>

#include "fl/dispatch/routes.h"

namespace lightning_mp::fl {
namespace {

constexpr const char* kDefault = "default";
constexpr const char* kBuiltIn = "built-in";

struct Table {
  std::shared_mutex mutex;
  std::map<std::string, std::map<std::string, c10::OperatorHandle>> kernels;  // op, precision
  std::string precision = kDefault;
};

Table& table() {
  static auto* const all = new Table;
  return *all;
}

}  // namespace

void add_generic_kernel(const std::string& op, const std::string& precision,
                        const std::string& kernel) {
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(kernel.c_str(), /*overload_name=*/"");
  {
    const std::unique_lock<std::shared_mutex> lock(table().mutex);
    table().kernels[op].insert_or_assign(precision, handle);
  }
  reset_routes();
}

void add_built_in_kernel(const std::string& op, const std::string& kernel) {
  add_generic_kernel(op, kBuiltIn, kernel);
}

void remove_generic_kernel(const std::string& op, const std::string& precision) {
  {
    const std::unique_lock<std::shared_mutex> lock(table().mutex);
    auto& kernels = table().kernels[op];
    kernels.erase(precision);
    if (kernels.empty()) table().kernels.erase(op);
  }
  reset_routes();
}

void choose_precision(const std::string& precision) {
  const std::unique_lock<std::shared_mutex> lock(table().mutex);
  table().precision = precision;
}

bool has_generic_kernel(const std::string& op) {
  const std::shared_lock<std::shared_mutex> lock(table().mutex);
  return table().kernels.count(op) > 0;
}

bool has_built_in_kernel(const std::string& op) {
  const std::shared_lock<std::shared_mutex> lock(table().mutex);
  const auto found = table().kernels.find(op);
  return found != table().kernels.end() && found->second.count(kBuiltIn) > 0;
}

c10::OperatorHandle generic_kernel(const std::string& op) {
  const std::shared_lock<std::shared_mutex> lock(table().mutex);
  const auto& kernels = table().kernels.at(op);
  auto found = kernels.find(table().precision);
  if (found == kernels.end()) found = kernels.find(kDefault);
  if (found == kernels.end()) found = kernels.begin();
  return found->second;
}

}  // namespace lightning_mp::fl

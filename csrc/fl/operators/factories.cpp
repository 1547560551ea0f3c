#include <ATen/EmptyTensor.h>

#include "fl/operators/registration.h"
#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

const Device& device_for(std::optional<at::Device> device) {
  return device_at(resolve_index(device.has_value() ? device->index() : c10::DeviceIndex{-1}));
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided,
                              "empty tensor of "
                              "layout ",
                              *layout,
                              " on fl; the strided layout is allowed; make it "
                              "on the CPU");
  TORCH_CHECK(!pin_memory.value_or(false),
              "pin_memory = True on fl; only dense CPU tensors can be "
              "pinned; leave it out");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  return at::detail::empty_generic(size, device_for(device).fl_allocator.get(), kKeys,
                                   at::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  return at::detail::empty_strided_generic(size, stride, device_for(device).fl_allocator.get(),
                                           kKeys, at::dtype_or_default(dtype));
}

}  // namespace

void register_factories(torch::Library& aten) {
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
}

}  // namespace lightning_mp::fl

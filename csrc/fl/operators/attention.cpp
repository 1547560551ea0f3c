// Which kernel scaled dot product attention uses is the choice of the device underneath.
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>

#include "fl/dispatch/alias.h"
#include "fl/operators/registration.h"

namespace lightning_mp::fl {
namespace {

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  // torch calls the CPU's fused kernel on each device that is not CUDA, whatever is chosen.
  if (!device_at(query.device().index()).is_host()) {
    return static_cast<int64_t>(sdp::SDPBackend::math);
  }
  std::optional<at::Tensor> native_mask;
  if (mask.has_value()) native_mask = native_of(*mask);
  return at::_ops::_fused_sdp_choice::call(native_of(query), native_of(key), native_of(value),
                                           native_mask, dropout, is_causal, scale, enable_gqa);
}

}  // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
}

}  // namespace lightning_mp::fl

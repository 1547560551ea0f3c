#include "fl/runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GeneratorImpl.h>

#include <utility>

#include "fl/runtime/device.h"

namespace lightning_mp::fl {
namespace {

class FlGenerator final : public c10::GeneratorImpl {
 public:
  FlGenerator(c10::Device device, at::Generator inner)
      : c10::GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  const at::Generator& inner() const { return inner_; }

  void set_current_seed(uint64_t seed) override { inner_.set_current_seed(seed); }

  uint64_t current_seed() const override { return inner_.current_seed(); }

  uint64_t seed() override { return inner_.seed(); }

  void set_offset(uint64_t offset) override { inner_.set_offset(offset); }

  uint64_t get_offset() const override { return inner_.get_offset(); }

  void set_state(const c10::TensorImpl& state) override {
    inner_.unsafeGetGeneratorImpl()->set_state(state);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }

  FlGenerator* clone_impl() const override { return new FlGenerator(device_, inner_.clone()); }

 private:
  at::Generator inner_;
};

}  // namespace

at::Generator make_generator(const Device& device) {
  const c10::Device native = device.spec.native;
  at::Generator inner = native.is_cpu()
                            ? at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val)
                            : at::globalContext()
                                  .getAcceleratorHooksInterface(native.type())
                                  .getNewGenerator(native.index());
  return at::make_generator<FlGenerator>(device.fl(), std::move(inner));
}

at::Generator native_generator(const std::optional<at::Generator>& generator,
                               const Device& device) {
  const bool is_given = generator.has_value() && generator->defined();
  const at::Generator& chosen = is_given ? *generator : device.generator;
  TORCH_CHECK_VALUE(chosen.device() == device.fl(), "generator of ", chosen.device(),
                    " for tensors of ", device.fl(),
                    "; a generator of the same device is allowed; "
                    "make one with torch.Generator('",
                    device.fl(), "')");
  return static_cast<FlGenerator*>(chosen.unsafeGetGeneratorImpl())->inner();
}

}  // namespace lightning_mp::fl

// Python's view of the registration; lightning_mp/_O1.pyi describes it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernels.h"

namespace o1 = lightning_mp::o1;
namespace py = pybind11;

PYBIND11_MODULE(_O1, module) {
  module.doc() = "O1's cast policies at the dispatcher's Autocast keys.";
  module.attr("TORCH_VERSION") = o1::torch_version();
  module.attr("SOURCE_DIGEST") = LIGHTNING_MP_SOURCE_DIGEST;
  module.def("slot", &o1::slot, py::arg("op"), py::arg("overload"), py::arg("device"));
  module.def("add", &o1::add, py::arg("op"), py::arg("overload"), py::arg("policy"),
             py::arg("device"));
  module.def("remove", &o1::remove, py::arg("device"));
  module.def("table", &o1::table);
  module.def("use_carrier", &o1::use_carrier, py::arg("device"), py::arg("carrier"));
}

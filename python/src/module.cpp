// The Python module lockstep_torch._C.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>

#include "lockstep/base/error.h"
#include "python/src/progress_thread.h"
#include "python/src/python_stacks.h"
#include "python/src/torch_backend.h"

// As in torch/csrc/utils/pybind.h, which would bring most of PyTorch's own bindings.
PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace lockstep::python {
namespace {

namespace py = pybind11;
using c10d::Backend;

c10::intrusive_ptr<TorchBackend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                              std::chrono::milliseconds timeout,
                                              const std::string& group_name,
                                              c10::intrusive_ptr<Backend::Options> options) {
  if (!options) options = c10::make_intrusive<Backend::Options>("lockstep");
  // A copy: those of the caller may serve another group.
  auto own = c10::make_intrusive<Backend::Options>(*options);
  own->timeout = timeout;
  own->group_name = group_name;
  return c10::make_intrusive<TorchBackend>(std::move(store), rank, size, std::move(own));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The backend `lockstep` of torch.distributed.";
  py::class_<TorchBackend, Backend, c10::intrusive_ptr<TorchBackend>>(module, "Backend")
      .def_property_readonly("options", &TorchBackend::getBackendOptions);
  module.def("make_backend", &make_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("group_name"), py::arg("options") = nullptr,
             py::call_guard<py::gil_scoped_release>());
  module.def("show_python_stacks_to_launcher", &show_python_stacks_to_launcher);
  module.def(
      "stop_progress", [] { ProgressThread::instance().stop(); },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace lockstep::python

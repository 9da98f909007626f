// The Python module lockstep_torch._C.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "lockstep/base/error.h"
#include "python/src/progress_thread.h"
#include "python/src/python_errors.h"
#include "python/src/python_replica.h"
#include "python/src/python_stacks.h"
#include "python/src/torch_backend.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;
using c10d::Backend;

c10::intrusive_ptr<TorchBackend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                              int size, std::chrono::milliseconds timeout,
                                              const std::string& group_name,
                                              c10::intrusive_ptr<Backend::Options> options) {
  if (!options) options = c10::make_intrusive<Backend::Options>("lockstep");
  // A copy: those of the caller may serve another group.
  auto own = c10::make_intrusive<Backend::Options>(*options);
  own->timeout = timeout;
  own->group_name = group_name;
  return c10::make_intrusive<TorchBackend>(std::move(store), rank, size, std::move(own));
}

std::optional<at::ScalarType> exchange_dtype(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "torch.float16") return at::kHalf;
  if (*name == "torch.bfloat16") return at::kBFloat16;
  throw UsageError("DistributedDataParallel: exchange_dtype=" + *name +
                   "; give torch.float16, torch.bfloat16 or None");
}

// Runs `call` without the GIL; its errors become Python's.
template <class Call>
auto call_replica(Call&& call) {
  try {
    if (runs_signal_handler()) {
      throw UsageError(
          "DistributedDataParallel: called by a signal handler while a collective waits; set a "
          "flag in "
          "the handler, and call it from the training loop");
    }
    const py::gil_scoped_release without_gil;
    return call();
  } catch (...) {
    rethrow_for_python();
  }
}

template <class Result, class... Args>
auto method(Result (PythonReplica::*function)(Args...)) {
  return [function](PythonReplica& replica, Args... args) {
    return call_replica([&] { return (replica.*function)(args...); });
  };
}
template <class Result>
auto method(Result (PythonReplica::*function)() const) {
  return [function](const PythonReplica& replica) {
    return call_replica([&] { return (replica.*function)(); });
  };
}

std::unique_ptr<PythonReplica> make_replica(
    const c10::intrusive_ptr<TorchBackend>& backend, const NamedTensors& parameters,
    const NamedTensors& buffers, std::optional<double> bucket_cap_mb,
    std::vector<double> bucket_cap_mb_list, bool broadcast_buffers, bool init_sync,
    bool find_unused_parameters, bool static_graph, bool gradient_as_bucket_view,
    const std::optional<std::string>& exchange_dtype_name, bool gradient_norm,
    int check_replicas_every, std::vector<std::string> ignored) {
  return call_replica([&] {
    return std::make_unique<PythonReplica>(
        parameters, buffers,
        DistributedDataParallelOptions{.process_group = backend->group(),
                                       .bucket_cap_mb = bucket_cap_mb,
                                       .bucket_cap_mb_list = std::move(bucket_cap_mb_list),
                                       .init_sync = init_sync,
                                       .forward_sync_buffers = broadcast_buffers,
                                       .find_unused_parameters = find_unused_parameters,
                                       .static_graph = static_graph,
                                       .gradient_as_bucket_view = gradient_as_bucket_view,
                                       .parameters_and_buffers_to_ignore = std::move(ignored),
                                       .gradient_norm = gradient_norm,
                                       .exchange_dtype = exchange_dtype(exchange_dtype_name),
                                       .check_replicas_every = check_replicas_every});
  });
}

void bind_replica(py::module& module) {
  py::class_<PythonReplica>(module, "Replica")
      .def(py::init(&make_replica), py::arg("backend"), py::arg("parameters"), py::arg("buffers"),
           py::kw_only(), py::arg("bucket_cap_mb"), py::arg("bucket_cap_mb_list"),
           py::arg("broadcast_buffers"), py::arg("init_sync"), py::arg("find_unused_parameters"),
           py::arg("static_graph"), py::arg("gradient_as_bucket_view"), py::arg("exchange_dtype"),
           py::arg("gradient_norm"), py::arg("check_replicas_every"),
           py::arg("parameters_and_buffers_to_ignore"))
      .def("set_buffers", method(&PythonReplica::set_buffers))
      .def("before_forward", method(&PythonReplica::before_forward))
      .def("after_forward", method(&PythonReplica::after_forward))
      .def("add_outputs", method(&PythonReplica::add_outputs))
      .def("backward", method(&PythonReplica::backward))
      .def("forget_passes", method(&PythonReplica::forget_passes))
      .def("gradient_norm", method(&PythonReplica::gradient_norm))
      .def("check_replicas_agree", method(&PythonReplica::check_replicas_agree))
      .def("begin_no_sync", method(&PythonReplica::begin_no_sync))
      .def("end_no_sync", method(&PythonReplica::end_no_sync));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The backend `lockstep` of torch.distributed.";
  py::class_<TorchBackend, Backend, c10::intrusive_ptr<TorchBackend>>(module, "Backend")
      .def_property_readonly("options", &TorchBackend::getBackendOptions);
  module.def("make_backend", &make_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("group_name"), py::arg("options") = nullptr,
             py::call_guard<py::gil_scoped_release>());
  bind_replica(module);
  module.def("show_python_stacks_to_launcher", &show_python_stacks_to_launcher);
  module.def(
      "stop_progress", [] { ProgressThread::instance().stop(); },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace lockstep::python

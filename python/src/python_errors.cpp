#include "python/src/python_errors.h"

#include <memory>
#include <utility>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;

// Of ours, so that it passes through waits unchanged.
class Interrupted final : public Error {
 public:
  explicit Interrupted(std::shared_ptr<py::error_already_set> raised)
      : Error("a signal handler raised an exception"), raised_(std::move(raised)) {}
  /// The exception anew, as an error_already_set can be given back to Python once. With the GIL.
  [[noreturn]] void raise() const {
    PyErr_Restore(raised_->type().inc_ref().ptr(), raised_->value().inc_ref().ptr(),
                  raised_->trace().inc_ref().ptr());
    throw py::error_already_set();
  }

 private:
  std::shared_ptr<py::error_already_set> raised_;  // its destructor acquires the GIL
};

thread_local bool is_in_handler = false;

bool is_main_thread() {
  return ::syscall(SYS_gettid) == ::getpid();
}

}  // namespace

void run_signal_handlers() {
  if (!is_main_thread() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  // A handler may wait, and so come here again.
  const bool was_in_handler = std::exchange(is_in_handler, true);
  const int raised = PyErr_CheckSignals();
  is_in_handler = was_in_handler;
  if (raised == 0) return;
  throw Interrupted(std::make_shared<py::error_already_set>());
}

bool runs_signal_handler() {
  return is_in_handler;
}

void rethrow_for_python() {
  try {
    throw;
  } catch (const Interrupted& error) {
    const py::gil_scoped_acquire gil;
    error.raise();
  } catch (const OperationError& error) {
    throw c10::DistBackendError(error.what(), nullptr);
  }
}

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) saved_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  if (saved_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(saved_));
}

bool is_of_signal_handler(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    return true;
  } catch (...) {
    return false;
  }
}

c10d::ErrorType error_type_of(const std::exception_ptr& error) {
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerLost&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (const PeerFailed&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (...) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

c10d::WorkResult work_result_of(const std::exception_ptr& error) {
  switch (error_type_of(error)) {
    case c10d::ErrorType::SUCCESS:
      return c10d::WorkResult::SUCCESS;
    case c10d::ErrorType::TIMEOUT:
      return c10d::WorkResult::TIMEOUT;
    case c10d::ErrorType::COMM_ERROR:
    case c10d::ErrorType::REMOTE_ERROR:
      break;
  }
  return c10d::WorkResult::COMM_ERROR;
}

}  // namespace lockstep::python

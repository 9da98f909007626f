#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

/// Errors of Lockstep as PyTorch's Python layer expects them.
namespace lockstep::python {

/// Called in a catch block. Timeouts, lost peers and other failures of communication become
/// torch.distributed.DistBackendError; a Python exception that a signal handler raised (Ctrl-C)
/// becomes that exception; mistakes of the caller stay what Python shows as RuntimeError.
[[noreturn]] void rethrow_for_python();

/// For InitOptions::while_waiting: runs Python's signal handlers, if this is Python's main thread.
/// Threads: any, without the GIL. Errors: an error that rethrow_for_python turns into the
/// exception that a handler raised.
void run_signal_handlers();
/// Whether this thread is within run_signal_handlers(): a wait below it may hold locks.
bool runs_signal_handler();

/// Releases the GIL while it lives, if this thread holds it: PyTorch calls some methods of a Work
/// with it, and a waiting thread must not block the one that runs signal handlers.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* saved_ = nullptr;  ///< the interpreter's state of this thread
};

/// Whether a signal handler raised it.
bool is_of_signal_handler(const std::exception_ptr& error);
/// What getError() says of an exception.
c10d::ErrorType error_type_of(const std::exception_ptr& error);
/// What getFutureResult() says of it.
c10d::WorkResult work_result_of(const std::exception_ptr& error);

}  // namespace lockstep::python

#include "python/src/python_stacks.h"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include "lockstep/job/internal/worker_link.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/files/pipe.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;

constexpr int kMostBytes = 1 << 20;

volatile int stacks_fd = -1;

// faulthandler calls the handler that was there before it, when it has written.
void end_stacks(int) {
  const int before = errno;
  const char end = 0;
  static_cast<void>(!::write(stacks_fd, &end, 1));
  errno = before;
}

bool is_free(int signal) {
  struct sigaction present {};
  return ::sigaction(signal, nullptr, &present) == 0 && present.sa_handler == SIG_DFL;
}

}  // namespace

void show_python_stacks_to_launcher() {
  const int signal = SIGRTMAX - 1;
  const int link = inherited_worker_link();
  if (link < 0 || stacks_fd >= 0 || !is_free(signal)) return;
  Pipe pipe = make_pipe();
  // A launcher that does not read must not stop this process.
  ::fcntl(pipe.write_end.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(pipe.write_end.get(), F_SETPIPE_SZ, kMostBytes);
  stacks_fd = pipe.write_end.release();  // As long as the process lives.
  struct sigaction action {};
  action.sa_handler = end_stacks;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
  py::module_::import("faulthandler")
      .attr("register")(signal, py::arg("file") = static_cast<int>(stacks_fd),
                        py::arg("all_threads") = true, py::arg("chain") = true);
  send_message(link, PythonStacksPipe{.signal = signal}, pipe.read_end.get());
}

}  // namespace lockstep::python

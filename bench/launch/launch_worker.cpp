// The smallest worker of bench/launch and bench/recovery: it loads no library, so that what is
// timed is the launcher. It writes "first RANK NS PID PORT" into a named pipe before anything else,
// waits where it is told to, and writes "last RANK NS PID PORT" before it ends. PORT: of the job's
// store.
//
//   launch_worker PIPE [HOLD]
//
// HOLD: a named pipe, with a writer, that it reads to its end. NS is CLOCK_MONOTONIC, which
// Python's time.monotonic_ns() reads as well.
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/internal/env.h"

namespace lockstep {
namespace {

void tell(int pipe, const char* event, const timespec& now) {
  char line[96];
  const int size = std::snprintf(
      line, sizeof line, "%s %d %lld %d %d\n", event, env::integer(env::kRank).value_or(0),
      now.tv_sec * 1'000'000'000LL + now.tv_nsec, static_cast<int>(::getpid()),
      env::integer(env::kMasterPort).value_or(0));
  // One write of less than PIPE_BUF bytes is not mixed with those of others.
  if (::write(pipe, line, static_cast<std::size_t>(size)) != size) std::_Exit(1);
}

timespec now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using lockstep::now;
  using lockstep::tell;
  const timespec started = now();
  if (argc < 2) return 2;
  const int pipe = ::open(argv[1], O_WRONLY | O_CLOEXEC);
  if (pipe < 0) return 1;
  // Before the line, so that who has read it may close its end.
  const int hold = argc > 2 ? ::open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
  tell(pipe, "first", started);
  char byte = 0;
  while (hold >= 0 && ::read(hold, &byte, 1) > 0) {
  }
  tell(pipe, "last", now());
}

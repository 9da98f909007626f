#include "launcher/command_line/run_tool.h"

#include <cerrno>
#include <cstdio>
#include <exception>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/os/process/end_of_process.h"

namespace lockstep::inline internal {
namespace {

// Of the tools that load LibTorch.
[[gnu::constructor(101)]] void end_sooner() {
  end_without_destructors_of_libraries();
}

// A shell's >&- closes a standard stream. What is opened next would get its number, and what is
// written to the stream would go there: a socket of the launcher, or a worker's log.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is given out first: `fd` itself.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) {
      throw SystemError(concat("open /dev/null for the closed stream ", fd), errno);
    }
  }
}

// Errors: Error when not all that was printed could be written: a full disk, for example.
void finish_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // Why an earlier write failed is not known any more.
  if (errno == 0) throw Error("write to stdout: incomplete; check for a full disk");
  throw SystemError("write to stdout", errno);
}

}  // namespace

int run_tool(int argc, char** argv, int (*command)(const std::vector<std::string>& arguments)) {
  try {
    open_closed_streams();
    read_failpoints();
    const int status = command({argv + 1, argv + argc});
    finish_output();
    return status;
  } catch (const Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return kExitFailure;
  }
}

}  // namespace lockstep::inline internal

#include "launcher/command_line/ask_program.h"

#include <csignal>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {

ProgramResult ask_program(const std::vector<std::string>& words, const AskOptions& options) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Pipe out = make_pipe();
  const pid_t pid = spawn_process({.path = words.front(),
                                   .arguments = words,
                                   .environment = env::everything(),
                                   .stdin_fd = nothing.get(),
                                   .stdout_fd = out.write_end.get(),
                                   .stderr_fd = options.show_errors ? -1 : nothing.get()});
  out.write_end.reset();
  const UniqueFd process = open_process(pid);
  const Deadline deadline = Deadline::after(options.patience);
  ProgramResult result{.out = read_to_end(out.read_end.get(), deadline)};
  const bool in_time = wait_for_end(process, deadline);
  if (!in_time) {
    signal_group(pid, SIGKILL);
    wait_for_end(process, Deadline::after(kTimeToDie));
  }
  const ChildExit exit = reap_child(pid);
  if (in_time && exit.signal == 0) result.status = exit.exit_code;
  return result;
}

}  // namespace lockstep::inline internal

#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

/// A process of spawn() failed. The message names its rank and process, how it ended, and what its
/// exception said.
class ProcessFailed : public Error {
 public:
  ProcessFailed(const std::string& message, int rank, int exit_code)
      : Error(message), rank_(rank), exit_code_(exit_code) {}
  const char* name() const noexcept override { return "ProcessFailed"; }
  /// The process's own; 128 + n when signal n ended it.
  int exit_code() const noexcept override { return exit_code_; }
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
  int exit_code_;
};

/// Runs `body(rank)` for each rank from 0 to process_count - 1 in a process of its own on this
/// machine, and returns once all have ended: torch.multiprocessing.spawn for programs that are not
/// started by a launcher. In `body`, init_process_group() needs no arguments.
///
///   int main() {
///     return lockstep::run_main([] {
///       lockstep::spawn([](int rank) { train(rank); }, 2);
///       return 0;
///     });
///   }
///
/// Nothing is forked that goes on running, so threads and devices that are in use do no harm: each
/// process is this program started anew with the same arguments. main() runs in it up to the same
/// call of spawn(), there `body`, and then the process ends. So what stands before spawn() runs in
/// every process and must lead there; what stands behind it runs in the first alone.
///
/// When one fails, the others are told to end (SIGTERM, after 5 s SIGKILL). SIGINT, SIGTERM, SIGHUP
/// and SIGUSR1, where they would end this process, are passed on to them, with 30 s in which to
/// save, and end it after them. All die with the thread that called spawn(). Threads: any, one call
/// after another. Errors: ProcessFailed for the first process that failed by itself; UsageError for
/// fewer than one process and for a call within `body`; SystemError when no process can be made.
void spawn(const std::function<void(int rank)>& body, int process_count);

/// As spawn(), and returns what `body` has returned on rank 0: text, or bytes of any kind. In the
/// processes of a later call it returns the same again. A signal to this process which `body` has
/// answered in all of them, so that they end well, does not end it: what they return says more.
std::string spawn_for_result(const std::function<std::string(int rank)>& body, int process_count);

/// Whether this is a process of spawn() outside its body: there it does again what the first
/// process has done.
bool repeats_first_process();

}  // namespace lockstep

#pragma once

#include <functional>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

/// A process of spawn() failed. what() names its rank and process, how it ended, and its exception.
class ProcessFailed : public Error {
 public:
  ProcessFailed(const std::string& message, int rank, int exit_code)
      : Error(message), rank_(rank), exit_code_(exit_code) {}
  const char* name() const noexcept override { return "ProcessFailed"; }
  /// The process's exit code; 128 + n if signal n killed it.
  int exit_code() const noexcept override { return exit_code_; }
  /// Rank of the process that failed first.
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
  int exit_code_;
};

/// Runs `body(rank)` for each rank from 0 to process_count - 1 in its own process on this machine,
/// and returns when all have ended: torch.multiprocessing.spawn for programs without a launcher. In
/// `body`, init_process_group() needs no arguments.
///
///     int main() {
///       return lockstep::run_main([] {
///         lockstep::spawn([](int rank) { train(rank); }, 2);
///         return 0;
///       });
///     }
///
/// Each process is this program, started again with the same arguments, not a fork; so threads and
/// devices in use are safe. In each process main() runs to the same call of spawn(), runs `body`,
/// and the process exits. Code before spawn() therefore runs in every process and must lead to the
/// same call. Code after it runs only in the first process.
///
/// If a process fails, the others get SIGTERM, and SIGKILL after 5 s. SIGINT, SIGTERM, SIGHUP and
/// SIGUSR1 are forwarded to the processes if they would end this process. The processes have 30 s
/// to save their state; then the signal ends this process too. All processes end with the thread
/// that called spawn().
/// Threads: any, one call at a time.
/// Errors: ProcessFailed for the first process that failed by itself; UsageError for process_count
/// below 1 and for a call within `body`; SystemError if a process cannot be started.
void spawn(const std::function<void(int rank)>& body, int process_count);

/// Like spawn(), and returns what `body` returned on rank 0: any bytes. In the processes of a later
/// call it returns the same result without running `body`. If a forwarded signal arrives and all
/// processes exit with code 0, this process returns the result instead of ending by the signal.
std::string spawn_for_result(const std::function<std::string(int rank)>& body, int process_count);

inline namespace internal {

/// Whether this is a process of spawn() before its body, where it repeats what the first process
/// did.
bool repeats_first_process();

}  // namespace internal

}  // namespace lockstep

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "diagnose/verdict/crash_report.h"
#include "diagnose/verdict/error_file.h"

namespace lockstep::inline internal {

/// How a worker ended.
struct WorkerExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  /// Directory of its logs and error file; empty: none.
  std::filesystem::path directory{};
  /// Exit code; 0 if a signal killed it.
  int exit_code = 0;
  int signal = 0;
  /// It ended after the launcher's signal to stop.
  bool told_to_stop = false;
  /// It ended with exit code 0 before its training was complete.
  bool left_early = false;
  /// It had reported that its training was complete.
  bool was_done = false;
  /// It reported that restarted workers cannot continue either.
  bool cannot_recover = false;
  /// Why the launcher killed it: what it did not do in time, according to another rank. Empty: it
  /// was not killed for that.
  std::string late_for{};
  /// Where it was then; empty: unknown.
  std::string hangs_in{};
  /// For a worker that kept its state: the generation since which it had not answered the launcher;
  /// 0: it had joined the one in which it ended.
  std::uint64_t silent_since = 0;
  /// Its deadline expired in a wait for another rank.
  bool deadline_expired = false;
  /// Then: "rank 1 (pid 42) hangs in read_batch() train.cpp:88". Empty: the late rank is unknown.
  std::string late_rank{};
  /// Message in its error file, if any.
  std::string error_message{};
  ErrorKind error_kind = ErrorKind::kOwn;
  /// Exit code in its error file; 0: none.
  int error_code = 0;
  /// If its error is a crash of a Lockstep program.
  std::optional<CrashReport> crash{};
  /// The training step that it was in; empty: unknown.
  std::string step{};
  /// If a signal killed it without a report: the collectives that it had started, newest first.
  std::vector<StartedCollective> collectives{};
  /// If the kernel killed a process of this machine for lack of memory meanwhile: whose memory was
  /// short.
  std::string memory_shortage{};

  /// Its error says that it lost its connection to another worker or that another worker failed.
  bool follows_another() const { return error_kind == ErrorKind::kOtherWorker; }
  bool failed() const { return exit_code != 0 || signal != 0 || left_early; }
  /// It had reported its error and was about to exit when the launcher's signal killed it.
  bool failed_before_stop() const {
    return told_to_stop && signal != 0 && !error_message.empty() && !crash;
  }
  /// Exit code as in a shell: 128 + n for a signal. For failed_before_stop(): the exit code in its
  /// error file, else 1.
  int status() const;
};

/// How a generation ended on this machine, with all workers in the order in which they ended.
struct GenerationOutcome {
  std::vector<WorkerExit> exits{};
  /// Signal to the launcher that stopped it; 0: none.
  int stop_signal = 0;
  /// Why a surviving worker left its group; empty: none did. Used if no exit explains it.
  std::string lost{};
  /// A worker left because another did not enter a collective in time.
  bool is_hang = false;
  /// The training step of the worker that left; empty: unknown.
  std::string step{};
  /// Workers that still exist after SIGKILL.
  std::vector<WorkerExit> stuck{};
};

/// The worker whose failure made the others fail; null if none failed by itself. It is the first
/// that ended with a failure, unless its error follows another worker's and that worker's failure
/// is among the exits: a process may need longer to end than its peers need to notice.
const WorkerExit* first_cause(const GenerationOutcome& outcome);

/// Whether the job was preempted: each worker saved its state and exited, succeeded, or had nothing
/// to save when the launcher's SIGTERM ended it.
bool is_preempted(const GenerationOutcome& outcome);

}  // namespace lockstep::inline internal

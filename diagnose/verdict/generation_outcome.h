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

/// How one worker ended.
struct WorkerExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  /// Where its logs and its error file are; empty: nowhere.
  std::filesystem::path directory{};
  /// 0 when a signal ended it.
  int exit_code = 0;
  int signal = 0;
  /// It ended after the launcher had told it to.
  bool told_to_stop = false;
  /// It ended with exit code 0 in the middle of a training that it was to go on with.
  bool left_early = false;
  /// It had said that its training was complete.
  bool was_done = false;
  /// It has said that workers which are started again could not go on either.
  bool gives_up = false;
  /// Why the launcher killed it though it was not to end: what another rank says it did not do in
  /// time; empty: it did not.
  std::string late_for{};
  /// Where it was then; empty: not known.
  std::string hangs_in{};
  /// The generation since which it had not answered the launcher, of a worker that kept its state
  /// into a later one; 0: it had joined the one that it ended in.
  std::uint64_t silent_since = 0;
  /// It has waited for another rank until its deadline.
  bool waited_in_vain = false;
  /// What it left in its error file, if anything.
  std::string error_message{};
  ErrorKind error_kind = ErrorKind::kOwn;
  /// The exit code that its error file announces; 0: none.
  int error_code = 0;
  /// Where its error is a crash of a program of Lockstep's.
  std::optional<CrashReport> crash{};
  /// The training's step that it was in; empty: not known.
  std::string step{};
  /// Those that it had begun when a signal ended it without a report; the newest first.
  std::vector<StartedCollective> collectives{};
  /// Where the kernel killed a process of this machine for want of memory meanwhile: whose memory
  /// was short.
  std::string memory_shortage{};

  /// Its error says that it only lost its connection to another or that another failed.
  bool follows_another() const { return error_kind == ErrorKind::kOtherWorker; }
  bool failed() const { return exit_code != 0 || signal != 0 || left_early; }
  /// It had reported its error and was on its way out when the launcher's signal ended it.
  bool failed_before_stop() const {
    return told_to_stop && signal != 0 && !error_message.empty() && !crash;
  }
  /// As a shell says it: 128 + n for a signal. For one that failed before it was stopped, what it
  /// would have ended with: the announced exit code, or else 1.
  int status() const;
};

/// How a generation ended: all workers of this machine, in the order in which they ended.
struct GenerationOutcome {
  std::vector<WorkerExit> exits{};
  /// The signal that the launcher was told to stop with; 0: none.
  int stop_signal = 0;
  /// Why a worker that goes on left its group; empty: none did. Counts where no exit explains it.
  std::string lost{};
  /// As another did not do its part in time.
  bool is_hang = false;
  /// The training's step that such a worker was in; empty: not known.
  std::string step{};
  /// Workers that were still there after SIGKILL.
  std::vector<WorkerExit> stuck{};
};

/// The worker whose failure brought the others down; null when none failed by itself.
/// That is the first that ended with a failure, unless its error says that it only lost its
/// connection to another or follows another's error, and that other one's failure is among the
/// exits: a process may need longer to end than its peers need to notice.
const WorkerExit* first_cause(const GenerationOutcome& outcome);

/// The job was preempted: each worker saved its state and ended, ended well, or had nothing to save
/// when the launcher's SIGTERM ended it.
bool is_preempted(const GenerationOutcome& outcome);

}  // namespace lockstep::inline internal

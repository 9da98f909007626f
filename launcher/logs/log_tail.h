#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/line_filter.h"
#include "lockstep/os/process/helper_process.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {

/// A log file whose lines are shown on the console.
struct TailedLog {
  std::filesystem::path file{};
  std::string prefix{};
  int console_fd = -1;
  /// If not empty, the lines that `filter` selects are appended to this file instead. It must
  /// exist.
  std::filesystem::path copy{};
  LineFilter filter{};
};

/// Shows lines of log files on the console as they are written, in a separate process: a slow,
/// stopped or closed console delays neither the workers, which write to files, nor the launcher. It
/// reads 64 KiB of each file in turn, so that a fast stream does not delay the others. Another
/// process copies lines, independent of the console.
class LogTail {
 public:
  /// Once the workers have ended: of output that the console has not accepted, only this many bytes
  /// at the end of each log are shown, with a line that says so. The file has all.
  static constexpr std::uint64_t kMostBytesLeft = 4 * 1024 * 1024;

  /// The files must exist.
  explicit LogTail(const std::vector<TailedLog>& logs);

  /// How finish() ended.
  struct Result {
    bool complete = true;
    /// Signal that ended the wait; 0: none.
    int stop_signal = 0;
  };

  /// The workers have ended: the process shows the rest, at most kMostBytesLeft per log, and ends.
  /// Does not wait.
  void request_end();
  /// Whether the process has ended.
  bool ended() const;

  /// Like request_end(), and waits until the rest is shown, the deadline expires, or the launcher
  /// gets a signal to stop. `wait` must return at the deadline, or earlier if `signals` is readable
  /// (SIGCHLD included).
  Result finish(Deadline deadline, SignalFd& signals, const std::function<void()>& wait);

 private:
  HelperProcess process_;
  std::optional<HelperProcess> copier_;
};

}  // namespace lockstep::inline internal

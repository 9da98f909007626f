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

/// A log file whose lines are shown.
struct TailedLog {
  std::filesystem::path file{};
  std::string prefix{};
  int console_fd = -1;
  /// When not empty, the lines that `filter` selects are appended to this file instead.
  /// It must exist.
  std::filesystem::path copy{};
  LineFilter filter{};
};

/// Shows lines of log files on the console as they are written, in a process of its own: a console
/// that is slow, stopped or closed delays neither the workers, which write to files, nor the
/// launcher. Streams take turns of 64 KiB, so that one that is written faster than the console
/// takes it does not hold up the others. Copies of lines are made by another process, which no
/// console holds up either.
class LogTail {
 public:
  /// Of each log, once the workers have ended: what the console has not taken by then is left out
  /// but for so many bytes at its end, with a line that says so. The file has all.
  static constexpr std::uint64_t kMostBytesLeft = 4 * 1024 * 1024;

  /// The files must exist.
  explicit LogTail(const std::vector<TailedLog>& logs);

  struct Result {
    bool complete = true;
    /// The signal that ended the wait; 0: none.
    int stop_signal = 0;
  };

  /// The workers have ended: shows what is left, kMostBytesLeft of each, and ends. Never waits.
  void request_end();
  bool ended() const;

  /// As request_end(), and waits for the end: shows what is left, once the workers have ended,
  /// unless the console does not take it by the deadline or the launcher is told to stop. `wait`
  /// returns at the deadline or when there are signals to read, SIGCHLD among them; or earlier.
  Result finish(Deadline deadline, SignalFd& signals, const std::function<void()>& wait);

 private:
  HelperProcess process_;
  std::optional<HelperProcess> copier_;
};

}  // namespace lockstep::inline internal

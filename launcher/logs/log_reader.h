#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/logs/line_prefixer.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Which logs of a job to read.
struct LogChoice {
  /// Empty: the last, and all that follow.
  std::optional<int> attempt{};
  /// Empty: all.
  std::vector<int> local_ranks{};
  /// Number of existing lines to read from the end of each file; empty: all.
  std::optional<std::uint64_t> last_lines{};
};

/// Reads the log files of a job's workers, also while they run. Puts a prefix before each line that
/// names the worker.
class LogReader {
 public:
  struct Sink {
    /// Prefix of a worker's lines.
    std::function<std::string(int local_rank)> prefix;
    /// Receives complete lines.
    std::function<void(bool is_stderr, std::string_view lines)> lines;
    /// Called before the first line of each attempt.
    std::function<void(int attempt)> attempt;
  };

  /// `directory`: the job's, which contains one per attempt.
  LogReader(std::filesystem::path directory, LogChoice choice, Sink sink)
      : directory_(std::move(directory)), choice_(std::move(choice)), sink_(std::move(sink)) {}

  /// Reads the lines completed since the last call, 64 KiB of each file in turn.
  /// Errors: SystemError.
  void look();
  /// Last call, when no process writes any more: also reads incomplete lines.
  void finish();

  /// Whether there was any file.
  bool found_any() const { return found_any_; }

 private:
  struct File {
    UniqueFd fd;
    bool is_stderr;
    LinePrefixer lines;
    /// Bytes that this look() has yet to read of the bytes that it found.
    std::uint64_t bytes_left = 0;
  };

  void read_attempt(int attempt);
  void open_new_files(int attempt);
  void read_all(bool to_the_end);
  void read_chunk(File& file);
  void flush(File& file);

  const std::filesystem::path directory_;
  const LogChoice choice_;
  const Sink sink_;
  std::optional<int> attempt_;
  /// Files of the current attempt, by local rank, stdout first.
  std::map<std::pair<int, bool>, File> files_;
  bool is_first_look_ = true;
  bool is_last_look_ = false;
  bool found_any_ = false;
};

/// Attempts with a directory in a job's directory, ascending.
std::vector<int> attempts_in(const std::filesystem::path& directory);

/// Offset of the last `lines` lines of a file; an incomplete line counts as one.
/// Errors: SystemError.
std::uint64_t start_of_last_lines(int fd, std::uint64_t lines);

}  // namespace lockstep::inline internal

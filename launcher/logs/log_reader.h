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

/// Which of the logs of a job are read.
struct LogChoice {
  /// Nothing: the last, and those that come after it.
  std::optional<int> attempt{};
  /// Empty: all.
  std::vector<int> local_ranks{};
  /// Of those lines of each file that are there already, so many; nothing: all.
  std::optional<std::uint64_t> last_lines{};
};

/// Reads the log files of a job's workers, of those that run too: each line with what tells whose
/// it is before it.
class LogReader {
 public:
  struct Sink {
    /// What precedes the lines of a worker.
    std::function<std::string(int local_rank)> prefix;
    /// Takes whole lines.
    std::function<void(bool is_stderr, std::string_view lines)> lines;
    /// Called before the first line of each attempt.
    std::function<void(int attempt)> attempt;
  };

  /// `directory`: of the job, with one of each attempt in it.
  LogReader(std::filesystem::path directory, LogChoice choice, Sink sink)
      : directory_(std::move(directory)), choice_(std::move(choice)), sink_(std::move(sink)) {}

  /// Reads the lines that have become whole since the last look, of the files in turns of 64 KiB.
  /// Errors: SystemError.
  void look();
  /// The last look, once nothing is written any more: lines that are not whole, too.
  void finish();

  /// Whether there was any file.
  bool found_any() const { return found_any_; }

 private:
  struct File {
    UniqueFd fd;
    bool is_stderr;
    LinePrefixer lines;
    /// Of this look: how much is left of what was there when it began.
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
  /// Of the attempt that is read; by local rank, stdout first.
  std::map<std::pair<int, bool>, File> files_;
  bool is_first_look_ = true;
  bool is_last_look_ = false;
  bool found_any_ = false;
};

/// Of the attempts that left something in the directory of a job, in order.
std::vector<int> attempts_in(const std::filesystem::path& directory);

/// Where in a file its last `lines` lines begin; one that is not whole counts.
/// Errors: SystemError.
std::uint64_t start_of_last_lines(int fd, std::uint64_t lines);

}  // namespace lockstep::inline internal

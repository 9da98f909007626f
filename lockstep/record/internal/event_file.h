#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/os/files/append_lines.h"
#include "lockstep/record/internal/event.h"

namespace lockstep::inline internal {

struct EventFileOptions {
  /// Where a run goes on that had come further, or may have: what files before this one have of
  /// this step and later ones TensorBoard then leaves out. Unset: nothing of it.
  std::optional<std::int64_t> purge_step = std::nullopt;
  /// Events are written when so much time has passed since they last were, or 64 KiB are there.
  std::chrono::milliseconds flush_interval = std::chrono::seconds(10);
};

/// A file of events as TensorBoard reads them, a new one for each run of a program:
/// <folder>/events.out.tfevents.<seconds since 1970>.<machine>.<process>.<number in it>. The name
/// sorts after those of the event files in the folder; if need be, its time is later than now.
/// Threads: one at a time. Errors: SystemError when the folder cannot be made or written, also in a
/// later call, as when the disk is full.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder, const EventFileOptions& options = {});
  /// As flush(), with a warning in the log in place of an error.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  void add(const std::string& event);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path path_;
  std::chrono::milliseconds flush_interval_;
  LineLog file_;
  std::string waiting_;
  Clock::time_point written_at_ = Clock::now();
};

}  // namespace lockstep::inline internal

#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/os/files/append_lines.h"
#include "lockstep/record/internal/event.h"

namespace lockstep::inline internal {

/// Options of EventFile.
struct EventFileOptions {
  /// First step of a resumed run that may have been further before: TensorBoard then ignores this
  /// step and later ones in earlier files. Unset: nothing is ignored.
  std::optional<std::int64_t> purge_step = std::nullopt;
  /// Interval between writes; 64 KiB of events are written earlier.
  std::chrono::milliseconds flush_interval = std::chrono::seconds(10);
};

/// A file of events for TensorBoard, a new one for each run of a program:
/// <folder>/events.out.tfevents.<seconds since 1970>.<machine>.<process>.<number in it>. The name
/// sorts after those of the event files in the folder, if needed with a later time than now.
/// Threads: one at a time.
/// Errors: SystemError if the folder cannot be created or written, also in a later call, as with a
/// full disk.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder, const EventFileOptions& options = {});
  /// Like flush(), but logs a warning instead of an error.
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

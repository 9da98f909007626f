#include "lockstep/record/internal/event_file.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/record/internal/wall_seconds.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostWaitingBytes = std::size_t{64} << 10;
constexpr std::string_view kNameStart = "events.out.tfevents.";
constexpr std::int64_t kLargestSeconds = 9'999'999'999;  // ten digits

/// The seconds in the names of a folder's event files: the latest; 0 if there are none.
std::int64_t latest_seconds(const std::filesystem::path& folder) {
  std::int64_t latest = 0;
  std::error_code error;  // EventFile's first write reports it.
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!name.starts_with(kNameStart)) continue;
    std::int64_t seconds = 0;
    std::from_chars(name.data() + kNameStart.size(), name.data() + name.size(), seconds);
    // TensorBoard compares names as text: another number of digits would not sort by time.
    if (seconds < kLargestSeconds) latest = std::max(latest, seconds);
  }
  return latest;
}

/// TensorBoard reads the files of a folder in the order of their names, and a restart hides events
/// only of files that it has read. So this name sorts after those in the folder, even if they were
/// made within the same second or the clock was set back.
std::string new_file_name(const std::filesystem::path& folder) {
  static std::atomic<int> count{0};
  const std::int64_t seconds =
      std::max(static_cast<std::int64_t>(wall_seconds()), latest_seconds(folder) + 1);
  return concat(kNameStart, seconds, ".", host_name(), ".", ::getpid(), ".", count++);
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, const EventFileOptions& options)
    : path_(folder / new_file_name(folder)),
      flush_interval_(options.flush_interval),
      file_(path_, {.what = "write events to", .when_full = "free disk space"}) {
  const EventTime time{.wall_seconds = wall_seconds(), .step = options.purge_step.value_or(0)};
  waiting_ = framed_record(version_event(time));
  if (options.purge_step) waiting_ += framed_record(restart_event(time));
  flush();
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
  }
}

void EventFile::add(const std::string& event) {
  waiting_ += framed_record(event);
  const bool is_due = Clock::now() - written_at_ >= flush_interval_;
  if (is_due || waiting_.size() >= kMostWaitingBytes) flush();
}

void EventFile::flush() {
  written_at_ = Clock::now();
  if (waiting_.empty()) return;
  // What a full disk did not take is not tried again: it would stand behind half a record.
  const std::string text = std::exchange(waiting_, {});
  file_.append(text);
}

}  // namespace lockstep::inline internal

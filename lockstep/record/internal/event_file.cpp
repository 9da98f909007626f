#include "lockstep/record/internal/event_file.h"

#include <atomic>
#include <exception>
#include <utility>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/record/internal/wall_seconds.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostWaitingBytes = std::size_t{64} << 10;

std::string new_file_name() {
  static std::atomic<int> count{0};
  return concat("events.out.tfevents.", static_cast<std::int64_t>(wall_seconds()), ".", host_name(),
                ".", ::getpid(), ".", count++);
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, const EventFileOptions& options)
    : path_(folder / new_file_name()),
      flush_interval_(options.flush_interval),
      file_(path_, {.what = "write events to", .when_full = "make room"}) {
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

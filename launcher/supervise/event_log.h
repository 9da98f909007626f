#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// What all events of a launcher say of themselves.
struct EventSource {
  std::string run_id{};
  std::string role{};
  std::string hostname{};
  std::string rdzv_backend{};
  std::string entry_point{};
  int group_rank = 0;
  int group_world_size = 1;
  int role_world_size = 1;
};

EventSource event_source(const LaunchOptions& options);

/// How the job ended on this machine.
enum class JobEnd { kSucceeded, kStopped, kFailed };

/// What happens to the launcher (then there is no worker) or to a worker.
struct Event {
  /// "START", "SUCCEEDED", …
  std::string state{};
  std::int64_t timestamp_ms = 0;
  int total_run_time_s = 0;
  int restarts = 0;
  std::optional<double> duration_ms{};
  std::optional<std::string> error{};
  const WorkerExit* worker = nullptr;
  bool worker_failed = false;
};

/// An event as one line of JSON, without the newline, in torchrun's form.
std::string event_line(const EventSource& source, const Event& event);

/// Whether the options and LOGLEVEL want events.
bool prints_events(const LaunchOptions& options);

/// Prints torchrun's events on stderr, where they are wanted: of each generation how long finding
/// the other machines took, and each worker's start; of the last how each worker ended, and the
/// job. Unlike torchrun's they have the time, and the launcher's last is FAILED when a worker
/// failed.
class EventLog {
 public:
  EventLog(EventSource source, bool prints) : source_(std::move(source)), prints_(prints) {}

  /// The search for the other machines begins.
  void gathering() { gathering_begin_ = Clock::now(); }
  /// All machines have met and the workers have their ranks.
  void assigned(std::uint64_t generation, const NodePlacement& placement);
  void started(const WorkerExit& worker) const;
  void ended(JobEnd end, const GenerationOutcome& outcome) const;

 private:
  using Clock = std::chrono::steady_clock;

  void print(Event event) const;

  EventSource source_;
  const bool prints_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point gathering_begin_ = begin_;
  std::uint64_t generation_ = 1;
};

}  // namespace lockstep::inline internal

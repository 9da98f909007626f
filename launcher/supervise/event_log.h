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

/// Fields that all events of a launcher share.
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

/// The fields for a job's options.
EventSource event_source(const LaunchOptions& options);

/// How the job ended on this machine.
enum class JobEnd { kSucceeded, kStopped, kFailed };

/// An event of the launcher (`worker` is null) or of a worker.
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

/// An event as one line of JSON in torchrun's format, without a newline.
std::string event_line(const EventSource& source, const Event& event);

/// Whether the options and LOGLEVEL request events.
bool prints_events(const LaunchOptions& options);

/// Prints torchrun's events on standard error, if requested: for each generation the time until the
/// other machines joined, and each worker's start; for the last one each worker's end, and the
/// job's. Differences from torchrun: events have a time, and the launcher's last event is FAILED if
/// a worker failed.
class EventLog {
 public:
  EventLog(EventSource source, bool prints) : source_(std::move(source)), prints_(prints) {}

  /// The launcher starts to wait for the other machines.
  void gathering() { gathering_begin_ = Clock::now(); }
  /// All machines have joined, and workers have their ranks.
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

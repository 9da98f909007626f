#include "launcher/supervise/event_log.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "diagnose/verdict/error_file.h"
#include "launcher/job/console.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/supervise/worker_environment.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json json_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

// torchrun writes each of these as a list of one.
Json worker_details(const EventSource& source, const Event& event) {
  Json details{{"group_world_size", source.group_world_size}, {"entry_point", source.entry_point}};
  if (event.worker == nullptr) return details;
  const WorkerExit& worker = *event.worker;
  const auto list = [&](const char* name, const Json& value) {
    details[name] = Json::array({value});
  };
  list("local_rank", worker.local_rank);
  list("role_rank", worker.rank);
  list("role_world_size", source.role_world_size);
  list("exit_code",
       event.worker_failed ? Json(worker.signal != 0 ? -worker.signal : worker.exit_code) : Json());
  list("worker_pid", event.worker_failed ? Json(worker.pid) : Json());
  return details;
}

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::int64_t milliseconds_since_1970() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

double in_ms(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// The worker's error file, or what torchrun writes for a worker without one.
std::string error_of(const WorkerExit& worker) {
  if (const auto document = error_document(error_file_of(worker))) return *document;
  return text_of({{"message", worker.signal != 0 ? concat("ended by ", signal_name(worker.signal))
                                                 : std::string("<NONE>")}});
}

}  // namespace

EventSource event_source(const LaunchOptions& options) {
  // As torchrun, which meets by c10d on one machine.
  using Backend = RendezvousOptions::Backend;
  const auto backend =
      options.rendezvous.max_nodes > 1 ? options.rendezvous.backend : Backend::kC10d;
  return {.run_id = options.run_id,
          .role = options.role,
          .hostname = host_name(),
          .rdzv_backend = backend == Backend::kStatic ? "static"
                          : backend == Backend::kEtcd ? "etcd"
                                                      : "c10d",
          .entry_point = std::filesystem::path(options.program.name).filename().string(),
          .role_world_size = options.worker_count};
}

std::string event_line(const EventSource& source, const Event& event) {
  const WorkerExit* const worker = event.worker;
  return text_of({{"name", concat("torchelastic.worker.status.", event.state)},
                  {"source", worker == nullptr ? "AGENT" : "WORKER"},
                  {"timestamp", event.timestamp_ms},
                  {"metadata",
                   {{"run_id", source.run_id},
                    {"global_rank", worker == nullptr ? Json() : Json(worker->rank)},
                    {"group_rank", source.group_rank},
                    {"worker_id", worker == nullptr ? Json() : Json(concat(worker->pid))},
                    {"role", source.role},
                    {"hostname", source.hostname},
                    {"state", event.state},
                    {"total_run_time", event.total_run_time_s},
                    {"rdzv_backend", source.rdzv_backend},
                    {"raw_error", json_or_null(event.error)},
                    {"metadata", text_of(worker_details(source, event))},
                    {"agent_restarts", event.restarts},
                    {"duration_ms", json_or_null(event.duration_ms)}}}});
}

bool prints_events(const LaunchOptions& options) {
  constexpr std::array kAboveInfo = {"WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"};
  const std::string level = env::text(env::kAgentLogLevel).value_or("INFO");
  return options.prints_events &&
         std::find(kAboveInfo.begin(), kAboveInfo.end(), level) == kAboveInfo.end();
}

void EventLog::assigned(std::uint64_t generation, const NodePlacement& placement) {
  generation_ = generation;
  source_.group_rank = placement.node_rank;
  source_.group_world_size = placement.node_count;
  source_.role_world_size = placement.role_world_size;
  print({.state = "RENDEZVOUS", .duration_ms = in_ms(Clock::now() - gathering_begin_)});
  // The ranks come with the rendezvous.
  print({.state = "ASSIGN_WORKER_RANKS", .duration_ms = 0});
}

void EventLog::started(const WorkerExit& worker) const {
  print({.state = "START", .worker = &worker});
}

void EventLog::ended(JobEnd end, const GenerationOutcome& outcome) const {
  if (!prints_) return;
  const std::string job_state = end == JobEnd::kSucceeded ? "SUCCEEDED" : "FAILED";
  if (end == JobEnd::kStopped) {
    const int signal = outcome.stop_signal;
    print(
        {.state = job_state,
         .error = signal == 0 ? "stopped by a user" : concat("stopped by ", signal_name(signal))});
    return;
  }
  std::vector<WorkerExit> workers = outcome.exits;
  std::sort(workers.begin(), workers.end(),
            [](const WorkerExit& a, const WorkerExit& b) { return a.rank < b.rank; });
  for (const WorkerExit& worker : workers) {
    const bool failed = worker.failed() && (!worker.told_to_stop || worker.failed_before_stop());
    const char* const state = failed                      ? "FAILED"
                              : end == JobEnd::kSucceeded ? "SUCCEEDED"
                                                          : "TERMINATED";
    Event event{.state = state, .worker = &worker, .worker_failed = failed};
    if (failed) event.error = error_of(worker);
    print(event);
  }
  print({.state = job_state});
}

void EventLog::print(Event event) const {
  if (!prints_) return;
  event.timestamp_ms = milliseconds_since_1970();
  event.restarts = torchrun_attempt(generation_);
  event.total_run_time_s = static_cast<int>(
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_).count());
  say_text(event_line(source_, event) + "\n");
}

}  // namespace lockstep::inline internal

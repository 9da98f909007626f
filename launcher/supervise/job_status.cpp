#include "launcher/supervise/job_status.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "launcher/rendezvous/rendezvous_state.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::array<std::pair<JobStatus::State, const char*>, 5> kJobStates = {{
    {JobStatus::State::kGathering, "gathering"},
    {JobStatus::State::kRunning, "running"},
    {JobStatus::State::kStopping, "stopping"},
    {JobStatus::State::kSucceeded, "succeeded"},
    {JobStatus::State::kFailed, "failed"},
}};

constexpr std::array<std::pair<WorkerStatus::State, const char*>, 5> kWorkerStates = {{
    {WorkerStatus::State::kRunning, "running"},
    {WorkerStatus::State::kSucceeded, "succeeded"},
    {WorkerStatus::State::kFailed, "failed"},
    {WorkerStatus::State::kStopped, "stopped"},
    {WorkerStatus::State::kStuck, "stuck"},
}};

template <class Table, class State>
const char* name_in(const Table& table, State state) {
  for (const auto& [entry, name] : table) {
    if (entry == state) return name;
  }
  return "";
}

template <class State, class Table>
std::optional<State> state_in(const Table& table, const std::string& text) {
  for (const auto& [state, name] : table) {
    if (text == name) return state;
  }
  return std::nullopt;
}

std::string stuck_workers(const JobStatus& status) {
  std::string names;
  for (const WorkerStatus& worker : status.workers) {
    if (worker.state != WorkerStatus::State::kStuck) continue;
    names += concat(names.empty() ? "rank " : ", rank ", worker.rank, " (pid ", worker.pid, ")");
  }
  return names;
}

}  // namespace

const char* name_of(JobStatus::State state) {
  return name_in(kJobStates, state);
}

std::optional<JobStatus::State> job_state_named(const std::string& name) {
  return state_in<JobStatus::State>(kJobStates, name);
}

const char* name_of(WorkerStatus::State state) {
  return name_in(kWorkerStates, state);
}

std::optional<WorkerStatus::State> worker_state_named(const std::string& name) {
  return state_in<WorkerStatus::State>(kWorkerStates, name);
}

void judge_health(JobStatus& status, const std::string& trouble,
                  std::optional<GenerationEnd> failure) {
  const std::string stuck = stuck_workers(status);
  status.is_healthy = stuck.empty() && !failure && trouble.empty();
  if (!stuck.empty()) {
    status.health = concat("workers cannot be killed: ", stuck);
  } else if (failure) {
    status.health = concat(is_wanted(*failure) ? "job " : "job failed: ", status.cause);
  } else if (!trouble.empty()) {
    status.health = concat("cut off from the rendezvous: ", trouble);
  } else {
    status.health = name_of(status.state);
    if (status.state == JobStatus::State::kGathering && !status.missing.empty()) {
      status.health += concat(": ", status.missing);
    }
  }
  if (status.workers_seconds) {
    status.health += concat("; generation ", status.generation, ", workers run for ",
                            std::llround(std::floor(*status.workers_seconds)), " s");
  }
}

}  // namespace lockstep::inline internal

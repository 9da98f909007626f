#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// A worker of the generation that runs or ran last on this machine.
struct WorkerStatus {
  enum class State { kRunning, kSucceeded, kFailed, kStopped, kStuck };

  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  State state = State::kRunning;
  /// Run time until its end, or until now.
  double seconds = 0;
  /// CPU time of its process alone, while it runs.
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
  bool operator==(const WorkerStatus&) const = default;
};

/// A job as seen by its launcher on one machine.
struct JobStatus {
  enum class State {
    kGathering,  ///< waits for machines
    kRunning,
    kStopping,  ///< its workers are stopped
    kSucceeded,
    kFailed,
  };

  std::string job{};      ///< its id
  bool is_named = false;  ///< the user gave it that id
  pid_t pid = 0;          ///< of the launcher
  std::string host{};
  std::string program{};
  std::string role{};
  State state = State::kGathering;
  std::uint64_t generation = 0;  ///< of the generation that runs or ran last; 0: none has
  int restarts = 0;              ///< after failures, of the whole job
  int max_restarts = 0;
  std::string cause{};             ///< why the last generation ended, or the job
  std::optional<int> node_rank{};  ///< of a member of the running generation
  int node_count = 0;
  int world_size = 0;
  int worker_count = 0;                     ///< on this machine
  double seconds = 0;                       ///< since the launcher's start
  std::optional<double> workers_seconds{};  ///< since the running workers were started
  std::string log_directory{};  ///< of the workers' logs; empty: output goes only to the console
  std::string missing{};        ///< machines that the job waits for; empty: none
  bool is_healthy = false;
  std::string health{};  ///< in one line
  std::vector<WorkerStatus> workers{};
  bool operator==(const JobStatus&) const = default;
};

/// "running" and the like.
const char* name_of(JobStatus::State state);
/// The state of a name; empty for other texts.
std::optional<JobStatus::State> job_state_named(const std::string& name);
const char* name_of(WorkerStatus::State state);
std::optional<WorkerStatus::State> worker_state_named(const std::string& name);

/// Sets is_healthy and health from the other members. `trouble`: why the rendezvous is not
/// reachable; empty: it is. `failure`: why a job that does not continue ended.
void judge_health(JobStatus& status, const std::string& trouble,
                  std::optional<GenerationEnd> failure);

}  // namespace lockstep::inline internal

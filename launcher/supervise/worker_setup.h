#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/logs/log_tail.h"
#include "launcher/logs/worker_logs.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/event_log.h"
#include "launcher/supervise/worker_environment.h"
#include "lockstep/job/internal/worker_message.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/out_of_memory.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {

/// What all generations of a job share on this machine.
struct JobOnThisMachine {
  const LaunchOptions& options;
  /// The file that workers execute.
  std::string executable;
  Environment inherited_environment;
  /// Pattern of the prefix of a worker's lines on the console.
  std::string line_pattern;
  /// Processors of each worker, by local rank; empty: all processors.
  BindingPlan processors;
  std::filesystem::path directory;
  std::string job_mark;
  /// Control group in which workers are started; see SpawnOptions.
  int control_group = -1;
  /// Copy of the training state, for programs that leave one with the launcher.
  UniqueFd state_memory{};
  /// Number of completed steps at least, as ended workers reported; 0: none.
  std::int64_t steps_made = 0;
};

/// A generation of a job on this machine.
struct Generation {
  std::uint64_t number = 0;
  NodePlacement placement{};
  /// The bound socket of the job's store, for rank 0.
  UniqueFd store{};
};

/// A worker that will be started or get a rank.
struct WorkerPlan {
  int rank = 0;
  int local_rank = 0;
  /// Directory of its logs and its error file.
  std::filesystem::path directory{};
  SpawnOptions spawn{};
  /// Message to a worker that already runs.
  Place place{};
  int place_fd = -1;
  bool has_streams = false;
};

/// Prepares what this machine's workers are started with, and collects what they leave:
/// environments, streams, logs, error files, and the socket of the job's store. Through one
/// generation or, if workers keep their state, several.
/// Lifetime: the job and the event log must outlive it.
/// Errors: SystemError if logs cannot be written.
class WorkerSetup {
 public:
  WorkerSetup(JobOnThisMachine& job, EventLog& events);

  /// The workers of a generation, by local rank. Those in `kept` already run, and so do the first
  /// `standbys` of the others.
  std::vector<WorkerPlan> begin(Generation generation, const std::set<int>& kept, int standbys);
  /// A standby worker, which has no rank yet.
  WorkerPlan standby();
  /// Opens streams for a worker of begin() that ran and must be replaced.
  WorkerPlan with_streams(WorkerPlan plan);
  /// No worker needs the generation's store any more.
  void end_generation() { store_.reset(); }

  void started(const WorkerExit& worker) { events_.started(worker); }
  /// Adds the error that the worker left, and whether memory was short.
  void read_error(WorkerExit& exit) const;
  void ended(const WorkerExit& exit);
  /// Keeps a copy of the training state, which survives all workers.
  void keep_memory(UniqueFd memory) { job_.state_memory = std::move(memory); }
  /// Records the number of completed steps when a worker ended.
  void made_steps(std::int64_t steps) { job_.steps_made = std::max(job_.steps_made, steps); }
  /// Shows the rest of the workers' output; a signal that stops the job ends that.
  void finish_output(GenerationOutcome& outcome, JobRendezvous& rendezvous, SignalFd& signals);

 private:
  WorkerPlan make_worker(int local_rank, int number) const;
  void give_streams(WorkerPlan& worker, std::vector<TailedLog>& shown);
  void show(const std::vector<TailedLog>& logs);
  Place place_of(const WorkerPlan& worker, std::uint64_t generation) const;

  JobOnThisMachine& job_;
  EventLog& events_;
  GenerationFacts facts_;
  UniqueFd store_;
  /// Streams of the workers that will be started.
  std::vector<WorkerStreams> streams_;
  /// Console output of workers that were started together.
  struct Shown {
    LogTail tail;
    std::set<std::filesystem::path> running;
  };
  std::list<Shown> shown_;
  std::optional<OutOfMemoryKills> memory_kills_;
  int next_standby_ = 0;
};

}  // namespace lockstep::inline internal

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

/// What all generations of a job have in common on this machine.
struct JobOnThisMachine {
  const LaunchOptions& options;
  /// The file that workers execute.
  std::string executable;
  Environment inherited_environment;
  /// Of the prefix of each line of a worker on the console.
  std::string line_pattern;
  /// The processors of each worker, by local rank; empty: all processors.
  BindingPlan processors;
  std::filesystem::path directory;
  std::string job_mark;
  /// That workers are started in, as SpawnOptions has it.
  int control_group = -1;
  /// A copy of the training's state, of programs that leave one with the launcher.
  UniqueFd state_memory{};
  /// How far the training has come at least, as workers that have ended say; 0: no step.
  std::int64_t steps_made = 0;
};

/// A generation of a job as this machine takes part in it.
struct Generation {
  std::uint64_t number = 0;
  NodePlacement placement{};
  /// The bound socket of the job's store, for rank 0.
  UniqueFd store{};
};

/// A worker that is about to be started or to get a rank.
struct WorkerPlan {
  int rank = 0;
  int local_rank = 0;
  /// Of its logs and its error file.
  std::filesystem::path directory{};
  SpawnOptions spawn{};
  /// What one that runs already is sent instead.
  Place place{};
  int place_fd = -1;
  bool has_streams = false;
};

/// What workers are started with and leave behind on this machine: environments, streams, logs,
/// error files and the socket of the job's store, through one generation or, where workers keep
/// their state, several.
/// Lifetime: the job and the log of events must outlive it.
/// Errors: SystemError when logs cannot be written.
class WorkerSetup {
 public:
  WorkerSetup(JobOnThisMachine& job, EventLog& events);

  /// The workers of a generation by local rank. Those in `kept`, and of the others the first
  /// `standbys`, run already.
  std::vector<WorkerPlan> begin(Generation generation, const std::set<int>& kept, int standbys);
  /// A standby worker, which has no rank yet.
  WorkerPlan standby();
  /// A worker of begin(); streams are opened for one that ran and is replaced all the same.
  WorkerPlan with_streams(WorkerPlan plan);
  /// No worker needs the generation's store any more.
  void end_generation() { store_.reset(); }

  void started(const WorkerExit& worker) { events_.started(worker); }
  /// Adds the error that the worker left, and whether memory was short.
  void read_error(WorkerExit& exit) const;
  void ended(const WorkerExit& exit);
  /// A copy of the training's state that outlives all workers.
  void keep_memory(UniqueFd memory) { job_.state_memory = std::move(memory); }
  /// So many steps had been made when a worker ended.
  void made_steps(std::int64_t steps) { job_.steps_made = std::max(job_.steps_made, steps); }
  /// Shows the rest of the workers' output; signals that stop the job end that.
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
  /// Streams of the workers that are about to be started.
  std::vector<WorkerStreams> streams_;
  /// Output on the console of workers that were started together.
  struct Shown {
    LogTail tail;
    std::set<std::filesystem::path> running;
  };
  std::list<Shown> shown_;
  std::optional<OutOfMemoryKills> memory_kills_;
  int next_standby_ = 0;
};

}  // namespace lockstep::inline internal

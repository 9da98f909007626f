#pragma once

#include <filesystem>
#include <vector>

#include "diagnose/verdict/generation_outcome.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/job_status.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Records the status of a job on this machine for JobStatus.
/// Lifetime: the options and the rendezvous must outlive it.
class JobBoard {
 public:
  JobBoard(const LaunchOptions& options, const JobRendezvous& rendezvous)
      : options_(options), rendezvous_(rendezvous) {}

  void logs_go_to(const std::filesystem::path& directory) { log_directory_ = directory; }
  /// Workers of a generation will be started.
  void generation_begins(std::uint64_t generation);
  /// Workers wait for the next generation.
  void generation_is_over() { is_between_generations_ = true; }
  /// A generation begins with workers of the last one.
  void generation_continues(std::uint64_t generation);
  void started(const WorkerExit& worker);
  /// A running worker has this rank now.
  void placed(const WorkerExit& worker);
  void stopping() { is_stopping_ = true; }
  void ended(const WorkerExit& exit);
  void given_up(const WorkerExit& stuck);

  JobStatus status() const;

 private:
  using Clock = Deadline::Clock;
  struct Worker {
    WorkerStatus status;
    Clock::time_point start;
  };

  bool any_running() const;
  JobStatus::State state() const;

  const LaunchOptions& options_;
  const JobRendezvous& rendezvous_;
  const Clock::time_point start_ = Clock::now();
  std::filesystem::path log_directory_;
  std::uint64_t generation_ = 0;
  bool is_stopping_ = false;
  bool is_between_generations_ = false;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::inline internal

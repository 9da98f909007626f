#pragma once

#include <string>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// A running job, as status and control commands access it.
/// Threads: the agent's only thread.
class LiveJob {
 public:
  virtual ~LiveJob() = default;
  /// Name of its temporary files on this machine (launcher/supervise/job_directory.h).
  virtual const std::string& mark() const = 0;
  virtual JobStatus status() const = 0;
  /// Stops the job on all machines. Returns why it cannot; empty: it does.
  virtual std::string stop(const JobStop& wish) = 0;
  /// Changes the number of workers on this machine, from the next generation on, which begins soon.
  /// Returns why it cannot; empty: it does. `by`: who requests it, for the console.
  virtual std::string scale(int worker_count, const std::string& by) = 0;
};

/// Gives other programs access to a job while its launcher waits.
class JobMonitor {
 public:
  virtual ~JobMonitor() = default;
  /// Starts, until close(). No effect if it is open. A failure does not stop the job; it is printed
  /// on the console.
  virtual void open(LiveJob& job) noexcept = 0;
  virtual void close() noexcept = 0;
};

/// Runs a job's workers on this machine until all have ended, with restarts as the options say.
/// Prints failures on standard error. Opens `monitor` when the job has a status, and closes it at
/// the end.
/// Returns the exit code: 0 if all workers succeeded; that of the worker that failed first (128 + n
/// if signal n killed it); 128 + n if signal n stopped the launcher.
/// Threads: the main thread of a process without other threads and children: it reaps all children
/// and handles the job's signals.
/// Errors: those of JobRendezvous::wait(); ProgramError if the program cannot be executed;
/// SystemError if the port is in use or logs cannot be written; UsageError for a master address
/// that does not resolve. No worker is left.
int launch(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor);

/// The rules of the rendezvous for these options.
RendezvousRules rules_of(const LaunchOptions& options);

}  // namespace lockstep::inline internal

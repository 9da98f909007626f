#pragma once

#include <string>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/supervise/job_status.h"

namespace lockstep::inline internal {

/// A running job, as one looks at it and steers it from outside. Threads: the agent's only one.
class LiveJob {
 public:
  virtual ~LiveJob() = default;
  /// What its temporary files on this machine are known by (launcher/supervise/job_directory.h).
  virtual const std::string& mark() const = 0;
  virtual JobStatus status() const = 0;
  /// Ends the job on all machines. Returns why that cannot be; empty: it will be.
  virtual std::string stop(const JobStop& wish) = 0;
  /// From the next generation on, which begins soon, this machine runs so many workers. Returns as
  /// stop() does. `by`: who wishes it, for the console.
  virtual std::string scale(int worker_count, const std::string& by) = 0;
};

/// Lets others look at a job and steer it, while its launcher waits.
class JobMonitor {
 public:
  virtual ~JobMonitor() = default;
  /// From now on, until close(). Does nothing where it is open. Nothing that goes wrong keeps the
  /// job from running; it is said on the console.
  virtual void open(LiveJob& job) noexcept = 0;
  virtual void close() noexcept = 0;
};

/// Runs a job's workers on this machine until all have ended, with restarts as the options say.
/// Returns the exit code: 0 when all workers succeeded, the first failed worker's (128 + n when
/// signal n ended it), 128 + n when signal n stopped the launcher. Tells the user on stderr.
/// `monitor` is opened once there is something to be seen, and closed at the end.
/// Threads: call from the main thread of a process with no other thread and no other children: it
/// takes over their reaping and the signals to handle.
/// Errors: those of JobRendezvous::wait(); ProgramError when the program cannot be run; SystemError
/// when the port is taken or logs cannot be written; UsageError for a master address that does not
/// resolve. No worker is left.
int launch(const LaunchOptions& options, JobRendezvous& rendezvous, JobMonitor& monitor);

/// What the options mean for the rendezvous.
RendezvousRules rules_of(const LaunchOptions& options);

}  // namespace lockstep::inline internal

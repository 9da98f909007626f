#pragma once

#include <string>

#include "launcher/rendezvous/rendezvous_state.h"
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

}  // namespace lockstep::inline internal

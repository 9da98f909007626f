#pragma once

#include "lockstep/launch/job_status.h"

namespace lockstep {

/// A running job, as one looks at it from outside. Threads: the agent's only one.
class LiveJob {
 public:
  virtual ~LiveJob() = default;
  virtual JobStatus status() const = 0;
};

/// Lets others look at a job, while its launcher waits.
class JobMonitor {
 public:
  virtual ~JobMonitor() = default;
  /// From now on, until close(). Does nothing where it is open. Nothing that goes wrong keeps the
  /// job from running; it is said on the console.
  virtual void open(LiveJob& job) noexcept = 0;
  virtual void close() noexcept = 0;
};

}  // namespace lockstep

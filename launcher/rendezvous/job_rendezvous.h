#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/rendezvous/rendezvous_state.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Report of an agent: always its whole status, so lost, late and duplicate reports are harmless.
struct AgentReport {
  enum class Status {
    kIdle,       ///< stopping workers, or not ready yet
    kReady,      ///< ready for a generation after `generation`
    kRunning,    ///< workers of `generation` run
    kSucceeded,  ///< all workers ended with exit code 0
    kFailed,     ///< a worker failed: `fault`
    kLeaving,    ///< leaves the job: `farewell` says why
  };

  RendezvousNode node{};
  Status status = Status::kIdle;
  std::uint64_t generation = 0;
  WorkerFault fault{};
  std::string farewell{};
  JobStop stop{};
  bool operator==(const AgentReport&) const = default;
};

/// An agent's interface to the rendezvous of its job.
/// Threads: the agent's only thread.
class JobRendezvous {
 public:
  virtual ~JobRendezvous() = default;

  /// Whether the agent has reached the job, so view() is valid.
  virtual bool is_reached() const { return true; }
  /// Why the job is not reachable now, in one line; empty: it is.
  virtual std::string trouble() const { return ""; }
  /// This machine's address for the other machines, once the job is reached.
  virtual std::string own_address() const = 0;

  /// Sends the agent's status.
  virtual void report(const AgentReport& report) = 0;
  /// The last view received.
  virtual const AgentView& view() const = 0;
  /// What the job waits for, in one line for people; empty: unknown.
  virtual std::string missing() const = 0;

  /// Returns when the view has changed, the job is reached, `wake_fd` is readable, or the deadline
  /// expires.
  /// Errors: Error if the job can no longer be reached.
  virtual void wait(int wake_fd, const std::optional<Deadline>& deadline) = 0;

  /// Call it when the agent ends. Returns when the rendezvous has the last report and, if other
  /// agents depend on this one, when they know how the job ended; or at the deadline.
  virtual void finish(const Deadline& deadline) = 0;
};

}  // namespace lockstep::inline internal

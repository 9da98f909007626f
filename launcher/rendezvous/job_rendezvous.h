#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/rendezvous/rendezvous_state.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// What an agent says of itself: all of it each time, so that a report that is lost, late or
/// doubled does no harm.
struct AgentReport {
  enum class Status {
    kIdle,       ///< stopping workers, or not ready yet
    kReady,      ///< would start workers of a generation after `generation`
    kRunning,    ///< workers of `generation` run
    kSucceeded,  ///< they have all ended well
    kFailed,     ///< one failed: `fault`
    kLeaving,    ///< `farewell` says why
  };

  RendezvousNode node{};
  Status status = Status::kIdle;
  std::uint64_t generation = 0;
  WorkerFault fault{};
  std::string farewell{};
  JobStop stop{};
  bool operator==(const AgentReport&) const = default;
};

/// The way in which an agent takes part in the rendezvous of its job.
/// Threads: the agent's only one.
class JobRendezvous {
 public:
  virtual ~JobRendezvous() = default;

  /// Whether the view is more than a beginning: the job was reached once.
  virtual bool is_reached() const { return true; }
  /// Why it is not reached now, in a line; empty: it is.
  virtual std::string trouble() const { return ""; }
  /// The address of this machine at which others reach it, once the job is reached.
  virtual std::string own_address() const = 0;

  virtual void report(const AgentReport& report) = 0;
  virtual const AgentView& view() const = 0;
  /// Whom or what the job waits for, in a line for people; empty: nothing is known.
  virtual std::string missing() const = 0;

  /// Returns when the view has changed, when the job is reached, when `wake_fd` is readable, or at
  /// the deadline. Errors: Error when the job can no longer be reached.
  virtual void wait(int wake_fd, const std::optional<Deadline>& deadline) = 0;

  /// To be called at the agent's end: returns once what it reported last is known, and, where
  /// others depend on this agent, once they know how the job ended; or at the deadline.
  virtual void finish(const Deadline& deadline) = 0;
};

}  // namespace lockstep::inline internal

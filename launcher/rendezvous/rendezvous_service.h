#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/rendezvous_timeouts.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// Turns the reports of a job's agents, and missing reports, into events of its RendezvousState. It
/// has no clock: each call passes the time.
class RendezvousService {
 public:
  using Instant = Deadline::Clock::time_point;

  RendezvousService(const RendezvousRules& rules, const RendezvousTimeouts& timeouts,
                    RendezvousState state = {})
      : rules_(rules), timeouts_(timeouts), state_(std::move(state)) {}

  const RendezvousState& state() const { return state_; }
  AgentView view(const std::string& id) const { return view_of(state_, id); }

  /// Call it for a state taken over from another leader: each of its nodes must report within
  /// keep_alive_limit from `now`.
  void await_nodes(Instant now);
  /// Applies an agent's report.
  void report(const AgentReport& report, Instant now);
  /// The agent has not reported since `instant`, which is earlier than the service knows.
  void silent_since(const std::string& id, Instant instant);
  /// The agent's connection closed; it is lost unless it reconnects within
  /// RendezvousTimeouts::reconnect.
  void closed(const std::string& id, Instant now);
  /// Ends the job as failed.
  void end(const std::string& cause) { state_ = give_up(std::move(state_), cause); }
  /// Applies timeouts. Call it at next_event() at the latest.
  void tick(Instant now);
  /// When the next timeout expires; empty: none.
  std::optional<Instant> next_event() const;

  /// Why an agent may not take part, in one line for it; empty: it may.
  std::string objection(const RendezvousNode& node) const;
  /// A warning about an agent that takes part, in one line for people; empty: none.
  std::string warning(const RendezvousNode& node) const;
  /// What the job waits for, in one line.
  std::string missing(Instant now) const;

 private:
  struct Losses {
    int count = 0;
    Instant last{};
  };

  void apply(const AgentReport& report);
  void note_idle(const std::string& id, Instant now);
  void lose(const std::string& id, Instant now);
  void restart_timer(Instant now);
  Instant may_join_at(const std::string& host) const;
  /// A node that the job ran with may rejoin at once, even if others on its host were lost.
  Instant may_join_at(const RendezvousNode& node) const;

  RendezvousRules rules_;
  RendezvousTimeouts timeouts_;
  RendezvousState state_;
  struct Heard {
    AgentReport report;
    Instant lost_at;
    /// Since when it runs no workers although it is a member of the running generation.
    std::optional<Instant> idle_since{};
  };
  std::map<std::string, Heard> heard_;    // by id
  std::map<std::string, Losses> losses_;  // by host
  std::optional<RendezvousTimer> timer_;
  Instant timer_ends_{};
};

}  // namespace lockstep::inline internal

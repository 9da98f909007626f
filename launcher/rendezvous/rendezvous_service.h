#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/rendezvous_timeouts.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// Keeps the rendezvous of a job: turns reports of agents, and their absence, into events of its
/// state. It knows no clock: every call says what time it is.
class RendezvousService {
 public:
  using Instant = Deadline::Clock::time_point;

  RendezvousService(const RendezvousRules& rules, const RendezvousTimeouts& timeouts,
                    RendezvousState state = {})
      : rules_(rules), timeouts_(timeouts), state_(std::move(state)) {}

  const RendezvousState& state() const { return state_; }
  AgentView view(const std::string& id) const { return view_of(state_, id); }

  /// Of a state that was taken over: its nodes have yet to be heard of, as if each had been now.
  void await_nodes(Instant now);
  void report(const AgentReport& report, Instant now);
  /// Nothing has been heard of the agent for longer than the service knows it.
  void silent_since(const std::string& id, Instant instant);
  /// The agent's connection has closed; it may come back.
  void closed(const std::string& id, Instant now);
  /// The job cannot go on.
  void end(const std::string& cause) { state_ = give_up(std::move(state_), cause); }
  /// To be called at next_event() at the latest.
  void tick(Instant now);
  std::optional<Instant> next_event() const;

  /// Why this agent may not take part, in a line for it; empty: it may.
  std::string objection(const RendezvousNode& node) const;
  /// What is odd about its taking part, in a line for people; empty: nothing.
  std::string oddity(const RendezvousNode& node) const;
  /// Whom or what the job waits for, in a line.
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
  /// One that the job ran with is awaited, whoever else was lost on its host.
  Instant may_join_at(const RendezvousNode& node) const;

  RendezvousRules rules_;
  RendezvousTimeouts timeouts_;
  RendezvousState state_;
  struct Heard {
    AgentReport report;
    Instant lost_at;
    /// Since when it runs no workers, though it is a member of the generation that runs.
    std::optional<Instant> idle_since{};
  };
  std::map<std::string, Heard> heard_;    // by id
  std::map<std::string, Losses> losses_;  // by host
  std::optional<RendezvousTimer> timer_;
  Instant timer_ends_{};
};

}  // namespace lockstep::inline internal

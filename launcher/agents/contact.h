#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launcher/job/rendezvous_timeouts.h"
#include "launcher/rendezvous/rendezvous_state.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// How long an agent continues without a message from the rendezvous. After keep_alive_limit it
/// stops its workers, because the other machines then regard it as lost; after twice that time it
/// ends the job for itself. An agent that has never reached the rendezvous waits for the join
/// timeout.
class Contact {
 public:
  using Instant = Deadline::Clock::time_point;

  Contact(const RendezvousTimeouts& timeouts, Instant started)
      : timeouts_(timeouts), started_(started) {}

  /// A message arrived.
  void note(Instant now) { last_ = now; }
  /// When the last message arrived.
  const std::optional<Instant>& last() const { return last_; }
  /// Whether keep_alive_limit has expired since the last message.
  bool is_cut_off(Instant now) const { return last_ && now - *last_ >= timeouts_.keep_alive_limit; }
  /// When the agent ends the job for itself.
  Instant patience_ends() const {
    return last_ ? *last_ + 2 * timeouts_.keep_alive_limit : started_ + timeouts_.join;
  }
  /// "timeout in 12 s", until patience_ends().
  std::string timeout_text(Instant now) const {
    const auto left = std::chrono::ceil<std::chrono::seconds>(patience_ends() - now);
    return concat("timeout in ", std::max(left.count(), 0L), " s");
  }
  /// When is_cut_off() changes, or else patience_ends().
  Instant next_change(Instant now) const {
    return last_ && !is_cut_off(now) ? *last_ + timeouts_.keep_alive_limit : patience_ends();
  }
  /// The view that the agent acts on: `told`, the last one received; while it is cut off, a view in
  /// which it is a member of no generation, unless the job has ended. `cause` says why it is cut
  /// off.
  AgentView view(const AgentView& last_view, const std::optional<AgentView>& told, Instant now,
                 const std::function<std::string()>& cause) const {
    const bool goes_on = !told || !told->ended();
    if (goes_on && is_cut_off(now)) {
      return {.generation = last_view.generation, .restarts = last_view.restarts, .cause = cause()};
    }
    return told.value_or(last_view);
  }

 private:
  RendezvousTimeouts timeouts_;
  Instant started_;
  std::optional<Instant> last_;
};

}  // namespace lockstep::inline internal

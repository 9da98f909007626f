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

/// How long an agent goes on without a word from the rendezvous. After the limit of the keep-alive
/// it stops its workers, since the others hold it for lost; after as long again the job is over for
/// it. One that has never reached it waits for the join timeout.
class Contact {
 public:
  using Instant = Deadline::Clock::time_point;

  Contact(const RendezvousTimeouts& timeouts, Instant started)
      : timeouts_(timeouts), started_(started) {}

  void note(Instant now) { last_ = now; }
  const std::optional<Instant>& last() const { return last_; }
  bool is_cut_off(Instant now) const { return last_ && now - *last_ >= timeouts_.keep_alive_limit; }
  Instant patience_ends() const {
    return last_ ? *last_ + 2 * timeouts_.keep_alive_limit : started_ + timeouts_.join;
  }
  /// "timeout in 12 s", until patience_ends().
  std::string timeout_text(Instant now) const {
    const auto left = std::chrono::ceil<std::chrono::seconds>(patience_ends() - now);
    return concat("timeout in ", std::max(left.count(), 0L), " s");
  }
  /// When one of the above changes.
  Instant next_change(Instant now) const {
    return last_ && !is_cut_off(now) ? *last_ + timeouts_.keep_alive_limit : patience_ends();
  }
  /// What an agent goes by that had `last_view` and was told `told` last: that, for good once the
  /// job has ended; while it is cut off it is a member of no generation. `cause` says why it is.
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

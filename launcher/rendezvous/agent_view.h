#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// What an agent knows of the job: the part of the rendezvous that concerns it, of the same size
/// however many machines there are.
struct AgentView {
  RendezvousState::Phase phase = RendezvousState::Phase::kGathering;
  std::uint64_t generation = 0;
  /// It has joined, and need not again.
  bool is_there = false;
  /// Of a member of the round that runs.
  std::optional<NodePlacement> placement{};
  int restarts = 0;
  /// Why the last round ended, or why the job failed; then the exit code of the job, too.
  std::string cause{};
  int status = 0;
  /// Gathering: the last round ended because a worker did not do its part in time.
  bool is_hang = false;

  bool ended() const { return RendezvousState::is_end(phase); }
  bool operator==(const AgentView&) const = default;
};
AgentView view_of(const RendezvousState& state, const std::string& id);

/// What an agent does next. `running`: the generation whose workers it runs; nothing: it runs none.
/// `done`: the generation whose workers have all ended well; 0: none.
enum class AgentAction { kWait, kJoin, kStartWorkers, kStopWorkers, kEnd };
AgentAction next_action(const AgentView& view, std::optional<std::uint64_t> running,
                        std::uint64_t done);

}  // namespace lockstep::inline internal

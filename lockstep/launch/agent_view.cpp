#include "lockstep/launch/agent_view.h"

#include <algorithm>

namespace lockstep {

using Phase = RendezvousState::Phase;

AgentView view_of(const RendezvousState& state, const std::string& id) {
  const auto among = [&](const std::vector<RendezvousNode>& nodes) {
    return std::ranges::find(nodes, id, &RendezvousNode::id) != nodes.end();
  };
  return {.phase = state.phase,
          .generation = state.generation,
          .is_there = among(state.nodes) || among(state.waiting),
          .placement = placement_of(state, id),
          .restarts = state.restarts,
          .cause = state.cause,
          .status = state.phase == Phase::kFailed ? state.fault.status : 0};
}

AgentAction next_action(const AgentView& view, std::optional<std::uint64_t> running,
                        std::uint64_t done) {
  if (running) {
    const bool may_run = view.placement && *running == view.generation;
    return may_run ? AgentAction::kWait : AgentAction::kStopWorkers;
  }
  if (view.phase == Phase::kSucceeded || view.phase == Phase::kFailed) return AgentAction::kEnd;
  if (view.placement) {
    return done == view.generation ? AgentAction::kWait : AgentAction::kStartWorkers;
  }
  return view.is_there ? AgentAction::kWait : AgentAction::kJoin;
}

}  // namespace lockstep

#include "launcher/rendezvous/agent_view.h"

namespace lockstep::inline internal {

using Phase = RendezvousState::Phase;

AgentView view_of(const RendezvousState& state, const std::string& id) {
  return {.phase = state.phase,
          .generation = state.generation,
          .is_there = contains_node(state.nodes, id) || contains_node(state.waiting, id),
          .placement = placement_of(state, id),
          .restarts = state.restarts,
          .cause = state.cause,
          .status = state.phase == Phase::kFailed ? state.fault.status : 0,
          .is_hang = state.phase == Phase::kGathering && state.fault.is_hang &&
                     state.cause == state.fault.text};
}

AgentAction next_action(const AgentView& view, std::optional<std::uint64_t> running,
                        std::uint64_t done) {
  if (running) {
    const bool may_run = view.placement && *running == view.generation;
    return may_run ? AgentAction::kWait : AgentAction::kStopWorkers;
  }
  if (view.ended()) return AgentAction::kEnd;
  if (view.placement) {
    return done == view.generation ? AgentAction::kWait : AgentAction::kStartWorkers;
  }
  return view.is_there ? AgentAction::kWait : AgentAction::kJoin;
}

}  // namespace lockstep::inline internal

#include "launcher/rendezvous/rendezvous_state.h"

#include <algorithm>
#include <csignal>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using Phase = RendezvousState::Phase;
using Nodes = std::vector<RendezvousNode>;

bool erase_node(Nodes& nodes, const std::string& id) {
  return std::erase_if(nodes, [&](const RendezvousNode& node) { return node.id == id; }) > 0;
}

int count_of(const Nodes& nodes) {
  return static_cast<int>(nodes.size());
}

bool is_member(const RendezvousState& state, const std::string& id, std::uint64_t generation) {
  return state.phase == Phase::kRunning && state.generation == generation &&
         contains_node(state.nodes, id);
}

void begin_generation(RendezvousState& state, const RendezvousRules& rules) {
  // Those of the generation before keep their order, newcomers follow in theirs; unless they are
  // numbered.
  const auto place = [&](const RendezvousNode& node) -> std::ptrdiff_t {
    if (node.rank) return *node.rank;
    return std::ranges::find(state.last_members, node.id) - state.last_members.begin();
  };
  std::ranges::stable_sort(state.nodes, {}, place);
  if (count_of(state.nodes) > rules.max_nodes) {
    const auto first = state.nodes.begin() + rules.max_nodes;
    state.waiting.insert(state.waiting.begin(), first, state.nodes.end());
    state.nodes.erase(first, state.nodes.end());
  }
  state.phase = Phase::kRunning;
  ++state.generation;
  state.expected.clear();
  state.last_members.clear();
  state.succeeded.clear();
}

// All that can be there are: after the first generation nobody waits for those that may never come.
void begin_generation_if_complete(RendezvousState& state, const RendezvousRules& rules) {
  const bool full = count_of(state.nodes) >= rules.max_nodes;
  const bool again = state.generation > 0 && count_of(state.nodes) >= rules.min_nodes;
  if (state.expected.empty() && (full || again)) begin_generation(state, rules);
}

void gather_again(RendezvousState& state, const RendezvousRules& rules, GenerationEnd end,
                  std::string cause) {
  state.phase = Phase::kGathering;
  state.end = end;
  state.cause = std::move(cause);
  ++state.gathering;
  state.last_members.clear();
  for (const RendezvousNode& node : state.nodes) state.last_members.push_back(node.id);
  state.expected = std::move(state.nodes);
  // These run no workers that would have to be stopped.
  state.nodes = std::move(state.waiting);
  state.waiting.clear();
  state.succeeded.clear();
  begin_generation_if_complete(state, rules);
}

void fail(RendezvousState& state, GenerationEnd end, std::string cause) {
  state.phase = Phase::kFailed;
  state.end = end;
  state.cause = std::move(cause);
}

// No worker is at fault.
void fail_without_fault(RendezvousState& state, GenerationEnd end, std::string cause) {
  state.fault = {.text = cause};
  state.faulty.clear();
  fail(state, end, std::move(cause));
}

}  // namespace

std::optional<RendezvousTimer> timer_of(const RendezvousState& state,
                                        const RendezvousRules& rules) {
  if (state.phase != Phase::kGathering) return std::nullopt;
  if (count_of(state.nodes) < rules.min_nodes) {
    return RendezvousTimer{RendezvousTimer::Kind::kJoin, state.gathering};
  }
  // They are stopping their workers, for which they have a deadline of their own, or are lost. To
  // start without them would be to stop again when they come, which they would be late for, too.
  if (!state.expected.empty()) return std::nullopt;
  return RendezvousTimer{RendezvousTimer::Kind::kLastCall, state.gathering};
}

RendezvousState join(RendezvousState state, const RendezvousRules& rules,
                     const RendezvousNode& node) {
  if (state.ended() || contains_node(state.nodes, node.id) ||
      contains_node(state.waiting, node.id)) {
    return state;
  }
  if (state.phase == Phase::kGathering) {
    erase_node(state.expected, node.id);
    state.nodes.push_back(node);
    begin_generation_if_complete(state, rules);
  } else {
    state.waiting.push_back(node);
    if (count_of(state.nodes) < rules.max_nodes) {
      gather_again(state, rules, GenerationEnd::kMachineJoined,
                   concat("machine ", node.name, " joined"));
    }
  }
  return state;
}

RendezvousState remove(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       const std::string& how) {
  if (state.ended()) return state;
  const auto gone = std::ranges::find(state.nodes, id, &RendezvousNode::id);
  const std::string name = gone == state.nodes.end() ? "" : gone->name;
  erase_node(state.waiting, id);
  const bool was_expected = erase_node(state.expected, id);
  const bool was_there = erase_node(state.nodes, id);
  if (state.phase == Phase::kRunning) {
    if (!was_there) return state;
    const std::string cause = concat("machine ", name, " ", how);
    if (rules.machines_may_change) {
      gather_again(state, rules, GenerationEnd::kMachineGone, cause);
    } else {
      fail_without_fault(state, GenerationEnd::kMachineGone, cause);
    }
  } else if (was_expected || was_there) {
    begin_generation_if_complete(state, rules);
  }
  return state;
}

RendezvousState worker_failed(RendezvousState state, const RendezvousRules& rules,
                              const std::string& id, std::uint64_t generation,
                              const WorkerFault& fault) {
  // Its workers were preempted while they waited for the next generation.
  const bool was_preempted = fault.status == kExitPreempted && state.phase == Phase::kGathering &&
                             state.generation == generation &&
                             std::ranges::count(state.last_members, id) > 0;
  if (!is_member(state, id, generation) && !was_preempted) return state;
  const GenerationEnd end =
      fault.status == kExitPreempted ? GenerationEnd::kPreempted : GenerationEnd::kWorkerFailed;
  // Its failure is one of those that ended an earlier generation, found late.
  const bool is_counted =
      fault.silent_since > 0 && fault.silent_since <= state.restarted_after && !fault.is_final;
  if (is_counted && fault.status != kExitPreempted) {
    state.fault = fault;
    state.faulty = id;
    gather_again(state, rules, end, fault.text);
    return state;
  }
  const bool is_same = !fault.place.empty() && fault.place == state.fault.place;
  state.same_faults = is_same ? state.same_faults + 1 : 1;
  state.fault = fault;
  state.faulty = id;
  if (state.restarts >= rules.max_restarts || fault.status == kExitPreempted || fault.is_final) {
    fail(state, end, fault.text);
  } else if (state.same_faults >= rules.most_same_faults) {
    fail(state, end,
         concat(fault.text, "; no restart: same failure ", state.same_faults, " times in a row"));
  } else {
    ++state.restarts;
    state.restarted_after = generation;
    gather_again(state, rules, end, fault.text);
  }
  return state;
}

RendezvousState workers_stopped(RendezvousState state, const RendezvousRules& rules,
                                const std::string& id, std::uint64_t generation) {
  if (!is_member(state, id, generation) || state.succeeded.contains(id)) return state;
  const auto node = std::ranges::find(state.nodes, id, &RendezvousNode::id);
  gather_again(state, rules, GenerationEnd::kMachineCutOff,
               concat("machine ", node->name, " was cut off and stopped its workers"));
  return state;
}

RendezvousState resize(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       std::uint64_t generation, int worker_count) {
  if (!is_member(state, id, generation) || state.succeeded.contains(id)) return state;
  const auto node = std::ranges::find(state.nodes, id, &RendezvousNode::id);
  if (node->worker_count == worker_count) return state;
  gather_again(state, rules, GenerationEnd::kScaled,
               concat("machine ", node->name, " is scaled from ", node->worker_count, " to ",
                      count_text(worker_count, "worker")));
  return state;
}

RendezvousState give_up(RendezvousState state, const std::string& cause) {
  if (!state.ended()) fail_without_fault(state, GenerationEnd::kGivenUp, cause);
  return state;
}

RendezvousState stop(RendezvousState state, const JobStop& wish) {
  const bool hurries =
      wish.at_once && state.phase == Phase::kFailed && state.end == GenerationEnd::kStopped;
  if (state.ended() && !hurries) return state;
  state.end = wish.at_once ? GenerationEnd::kStoppedAtOnce : GenerationEnd::kStopped;
  state.cause = concat(wish.at_once ? "stopped at once by " : "stopped by ", wish.by);
  state.fault = {.text = state.cause, .status = 128 + (wish.at_once ? SIGKILL : SIGTERM)};
  state.faulty.clear();
  state.phase = Phase::kFailed;
  return state;
}

RendezvousState workers_succeeded(RendezvousState state, const std::string& id,
                                  std::uint64_t generation) {
  if (!is_member(state, id, generation)) return state;
  state.succeeded.insert(id);
  if (state.succeeded.size() == state.nodes.size()) state.phase = Phase::kSucceeded;
  return state;
}

RendezvousState timed_out(RendezvousState state, const RendezvousRules& rules,
                          const RendezvousTimer& timer) {
  if (timer_of(state, rules) != timer) return state;
  if (timer.kind == RendezvousTimer::Kind::kLastCall) {
    begin_generation(state, rules);
  } else {
    fail_without_fault(state, GenerationEnd::kNotEnoughMachines,
                       concat(count_of(state.nodes), " of at least ", rules.min_nodes,
                              " machines joined in time: ", names_of(state.nodes),
                              "; start the others, or give them longer with "
                              "--rdzv-conf=join_timeout=SECONDS"));
  }
  return state;
}

std::optional<NodePlacement> placement_of(const RendezvousState& state, const std::string& id) {
  if (state.phase != Phase::kRunning) return std::nullopt;
  const auto own = std::ranges::find(state.nodes, id, &RendezvousNode::id);
  if (own == state.nodes.end()) return std::nullopt;
  const RendezvousNode& first = state.nodes.front();
  NodePlacement placement{.node_rank = static_cast<int>(own - state.nodes.begin()),
                          .node_count = count_of(state.nodes),
                          .world_size = 0,
                          .role_world_size = 0,
                          .store_host = first.store_host,
                          .store_port = first.store_port};
  for (const RendezvousNode& node : state.nodes) {
    const bool same_role = node.role == own->role;
    if (&node == &*own) {
      placement.first_rank = placement.world_size;
      placement.first_role_rank = placement.role_world_size;
    }
    placement.world_size += node.worker_count;
    if (same_role) placement.role_world_size += node.worker_count;
  }
  return placement;
}

AgentView view_of(const RendezvousState& state, const std::string& id) {
  return {.phase = state.phase,
          .generation = state.generation,
          .is_there = contains_node(state.nodes, id) || contains_node(state.waiting, id),
          .placement = placement_of(state, id),
          .restarts = state.restarts,
          .cause = state.cause,
          .end = state.end,
          .is_own_fault = state.end == GenerationEnd::kWorkerFailed && state.faulty == id,
          .status = state.phase == Phase::kFailed ? state.fault.status : 0,
          .is_hang = state.phase == Phase::kGathering && state.fault.is_hang &&
                     state.end == GenerationEnd::kWorkerFailed};
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

RendezvousVersion version_of(const RendezvousState& state) {
  return {state.phase, state.gathering, state.generation, state.fault.status};
}

bool contains_node(const Nodes& nodes, const std::string& id) {
  return std::ranges::find(nodes, id, &RendezvousNode::id) != nodes.end();
}

bool is_stop(GenerationEnd end) {
  return end == GenerationEnd::kStopped || end == GenerationEnd::kStoppedAtOnce;
}

bool is_wanted(GenerationEnd end) {
  return is_stop(end) || end == GenerationEnd::kPreempted;
}

std::string names_of(const Nodes& nodes) {
  constexpr std::size_t kMostNames = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(nodes.size(), kMostNames); ++i) {
    text += concat(i == 0 ? "" : ", ", nodes[i].name);
  }
  if (nodes.size() > kMostNames) text += concat(" and ", nodes.size() - kMostNames, " more");
  return text.empty() ? "none" : text;
}

}  // namespace lockstep::inline internal

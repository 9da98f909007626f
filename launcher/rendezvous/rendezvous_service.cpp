#include "launcher/rendezvous/rendezvous_service.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using Status = AgentReport::Status;

constexpr int kLossesThatFlap = 3;

std::int64_t seconds_until(RendezvousService::Instant instant, RendezvousService::Instant now) {
  return std::chrono::ceil<std::chrono::seconds>(instant - now).count();
}

// The first parts, "; " between them, that are not the same; nothing where all are, or one side
// says nothing.
std::optional<std::pair<std::string, std::string>> first_difference(const std::string& left,
                                                                    const std::string& right) {
  constexpr std::string_view kBetween = "; ";
  if (left.empty() || right.empty()) return std::nullopt;
  std::size_t at_left = 0;
  std::size_t at_right = 0;
  const auto next = [&](const std::string& text, std::size_t& at) {
    if (at >= text.size()) return std::string("nothing");
    const auto end = std::min(text.find(kBetween, at), text.size());
    std::string part = text.substr(at, end - at);
    at = end + kBetween.size();
    return part;
  };
  while (at_left < left.size() || at_right < right.size()) {
    auto parts = std::pair(next(left, at_left), next(right, at_right));
    if (parts.first != parts.second) return parts;
  }
  return std::nullopt;
}

}  // namespace

void RendezvousService::await_nodes(Instant now) {
  for (const auto* nodes : {&state_.nodes, &state_.waiting, &state_.expected}) {
    for (const RendezvousNode& node : *nodes) {
      const AgentReport report{
          .node = node, .status = Status::kRunning, .generation = state_.generation};
      heard_[node.id] = {report, now + timeouts_.keep_alive_limit, std::nullopt};
    }
  }
  restart_timer(now);
}

void RendezvousService::report(const AgentReport& report, Instant now) {
  const std::string id = report.node.id;
  const auto idle_since = heard_[id].idle_since;
  heard_[id] = {report, now + timeouts_.keep_alive_limit, idle_since};
  note_idle(id, now);
  if (!report.stop.by.empty()) state_ = stop(std::move(state_), report.stop);
  if (report.status != Status::kReady || now >= may_join_at(report.node)) apply(report);
  if (report.status == Status::kLeaving) heard_.erase(id);
  restart_timer(now);
}

// Of one that leaves this is the word before the last.
void RendezvousService::note_idle(const std::string& id, Instant now) {
  Heard& agent = heard_.at(id);
  const bool is_idle = agent.report.status == Status::kIdle && view(id).placement &&
                       agent.report.generation == state_.generation;
  agent.idle_since = is_idle ? agent.idle_since.value_or(now) : std::optional<Instant>();
}

void RendezvousService::apply(const AgentReport& report) {
  const std::string& id = report.node.id;
  switch (report.status) {
    case Status::kReady:
      // It was said before the last generation, which used up what it offered.
      if (contains_node(state_.expected, id) && report.generation < state_.generation) return;
      state_ = workers_stopped(std::move(state_), rules_, id, report.generation);
      state_ = join(std::move(state_), rules_, report.node);
      return;
    case Status::kSucceeded:
      state_ = workers_succeeded(std::move(state_), id, report.generation);
      return;
    case Status::kFailed:
      state_ = worker_failed(std::move(state_), rules_, id, report.generation, report.fault);
      return;
    case Status::kLeaving:
      state_ = remove(std::move(state_), rules_, id, report.farewell);
      return;
    case Status::kRunning:
      state_ = resize(std::move(state_), rules_, id, report.generation, report.node.worker_count);
      return;
    case Status::kIdle:
      return;
  }
}

void RendezvousService::silent_since(const std::string& id, Instant instant) {
  const auto agent = heard_.find(id);
  if (agent == heard_.end()) return;
  agent->second.lost_at = std::min(agent->second.lost_at, instant + timeouts_.keep_alive_limit);
}

void RendezvousService::closed(const std::string& id, Instant now) {
  const auto agent = heard_.find(id);
  if (agent == heard_.end()) return;
  agent->second.lost_at = std::min(agent->second.lost_at, now + timeouts_.reconnect);
}

void RendezvousService::lose(const std::string& id, Instant now) {
  const auto agent = heard_.find(id);
  const std::string host = agent->second.report.node.host;
  heard_.erase(agent);
  Losses& losses = losses_[host];
  losses.count = now - losses.last <= timeouts_.flapping ? losses.count + 1 : 1;
  losses.last = now;
  state_ = remove(std::move(state_), rules_, id, "was lost");
}

RendezvousService::Instant RendezvousService::may_join_at(const std::string& host) const {
  const auto losses = losses_.find(host);
  if (losses == losses_.end() || losses->second.count < kLossesThatFlap) return Instant::min();
  constexpr int kMostDoublings = 10;
  const int doublings = std::min(losses->second.count - kLossesThatFlap, kMostDoublings);
  return losses->second.last + timeouts_.cool_down * (1 << doublings);
}

RendezvousService::Instant RendezvousService::may_join_at(const RendezvousNode& node) const {
  return contains_node(state_.expected, node.id) ? Instant::min() : may_join_at(node.host);
}

void RendezvousService::tick(Instant now) {
  std::vector<std::string> lost;
  for (const auto& [id, agent] : heard_) {
    if (agent.lost_at <= now) lost.push_back(id);
  }
  for (const std::string& id : lost) lose(id, now);
  for (const auto& [id, agent] : heard_) {
    // One that had to cool down, or that joined while the job ran full.
    const bool ready = agent.report.status == Status::kReady;
    if (ready && now >= may_join_at(agent.report.node)) apply(agent.report);
  }
  for (const auto& [id, agent] : heard_) {
    if (!agent.idle_since || *agent.idle_since + timeouts_.reconnect > now) continue;
    state_ = workers_stopped(std::move(state_), rules_, id, agent.report.generation);
  }
  if (timer_ && timer_ends_ <= now) state_ = timed_out(std::move(state_), rules_, *timer_);
  restart_timer(now);
}

void RendezvousService::restart_timer(Instant now) {
  const auto timer = timer_of(state_, rules_);
  if (timer == timer_) return;
  timer_ = timer;
  if (!timer) return;
  timer_ends_ =
      now + (timer->kind == RendezvousTimer::Kind::kJoin ? timeouts_.join : timeouts_.last_call);
}

std::optional<RendezvousService::Instant> RendezvousService::next_event() const {
  std::optional<Instant> next;
  const auto consider = [&](Instant instant) { next = std::min(next.value_or(instant), instant); };
  if (timer_) consider(timer_ends_);
  for (const auto& [id, agent] : heard_) {
    consider(agent.lost_at);
    if (agent.idle_since && view(id).placement) consider(*agent.idle_since + timeouts_.reconnect);
    if (agent.report.status != Status::kReady || state_.ended()) continue;
    const Instant may_join = may_join_at(agent.report.node);
    if (may_join != Instant::min() && !view(id).is_there) consider(may_join);
  }
  return next;
}

std::string RendezvousService::objection(const RendezvousNode& node) const {
  for (const auto& [id, agent] : heard_) {
    const RendezvousNode& other = agent.report.node;
    const auto parts = first_difference(node.agreement, other.agreement);
    if (id == node.id || !parts) continue;
    return concat("it was started as ", parts->first, ", and ", other.name, " as ", parts->second,
                  "; use the same on all machines of a job");
  }
  if (!node.rank) {
    if (rules_.max_nodes > 1 || state_.nodes.empty() || state_.nodes[0].id == node.id) return "";
    return concat("the job is for one machine and runs on ", state_.nodes[0].name);
  }
  for (const auto& [id, agent] : heard_) {
    if (id != node.id && agent.report.node.rank == node.rank) {
      return concat("node rank ", *node.rank, " is taken by ", agent.report.node.name);
    }
  }
  return "";
}

std::string RendezvousService::warning(const RendezvousNode& node) const {
  for (const auto& [id, agent] : heard_) {
    const RendezvousNode& other = agent.report.node;
    const bool known = !node.program.empty() && !other.program.empty();
    if (id == node.id || !known || node.program == other.program || node.role != other.role)
      continue;
    return concat("machine ", node.name, " runs another program file than machine ", other.name,
                  "; install the same on both: ranks that differ may hang");
  }
  return "";
}

std::string RendezvousService::missing(Instant now) const {
  if (state_.phase != RendezvousState::Phase::kGathering) return "";
  const int there = static_cast<int>(state_.nodes.size());
  std::string text =
      concat(there, " of ", rules_.min_nodes,
             rules_.max_nodes > rules_.min_nodes ? concat(" to ", rules_.max_nodes) : "",
             " machines joined (", names_of(state_.nodes), ")");
  if (!state_.expected.empty()) {
    text += concat("; ", names_of(state_.expected), " still stop their workers");
  }
  for (const auto& [host, losses] : losses_) {
    const Instant may_join = may_join_at(host);
    if (may_join > now) {
      text += concat("; ", host, " was lost ", losses.count, " times and may rejoin in ",
                     seconds_until(may_join, now), " s");
    }
  }
  if (timer_) text += concat("; timeout in ", seconds_until(timer_ends_, now), " s");
  return text;
}

}  // namespace lockstep::inline internal

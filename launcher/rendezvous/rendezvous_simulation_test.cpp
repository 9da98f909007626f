// Agents that join, leave, die, are cut off and come back in thousands of orders, with messages
// that are late, doubled and overtake each other, while whoever keeps the state is lost and another
// goes on from what was saved: whatever happens, what the agents agree on must hold.
#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "launcher/rendezvous/rendezvous_state.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/simulated_seeds_testing.h"

namespace lockstep {
namespace {

using Phase = RendezvousState::Phase;

struct Message {
  enum class Kind { kJoin, kRemove, kFailed, kSucceeded, kStopped, kResized } kind;
  std::size_t agent;
  std::uint64_t generation;
};

struct Agent {
  RendezvousNode node;
  std::optional<Message> reported{};  // which it repeats
  RendezvousState known{};            // as it was when it last looked
  std::optional<std::uint64_t> running{};
  std::uint64_t done = 0;
  bool alive = true;
  bool ended = false;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed) {
    rules_.max_nodes = draw(1, 4);
    rules_.min_nodes = draw(1, rules_.max_nodes);
    rules_.max_restarts = draw(0, 20);
    for (int i = draw(1, 5); i > 0; --i) add_agent();
  }

  void run() {
    for (int i = draw(50, 1000); i > 0; --i) do_anything();
    calm_down();
  }

 private:
  int draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }
  bool happens_once_in(int times) { return draw(1, times) == 1; }

  void add_agent() {
    const std::string id = concat("agent-", agents_.size());
    agents_.push_back({.node = {.id = id, .name = id, .worker_count = draw(1, 3)}});
  }

  // In any order, some more than once.
  void deliver_any() {
    if (messages_.empty()) return;
    const auto at = messages_.begin() + draw(0, static_cast<int>(messages_.size()) - 1);
    const Message message = *at;
    if (!happens_once_in(4)) messages_.erase(at);
    apply(message);
  }

  void apply(const Message& message) {
    const Agent& agent = agents_[message.agent];
    switch (message.kind) {
      case Message::Kind::kJoin:
        // Whoever keeps the state does not take in one that it holds for dead.
        if (agent.alive) set(join(state_, rules_, agent.node));
        return;
      case Message::Kind::kRemove:
        return set(remove(state_, rules_, agent.node.id, "was lost"));
      case Message::Kind::kFailed:
        return set(worker_failed(state_, rules_, agent.node.id, message.generation,
                                 {.text = concat("a worker of ", agent.node.id)}));
      case Message::Kind::kSucceeded:
        return set(workers_succeeded(state_, agent.node.id, message.generation));
      case Message::Kind::kStopped:
        return set(workers_stopped(state_, rules_, agent.node.id, message.generation));
      case Message::Kind::kResized:
        return set(
            resize(state_, rules_, agent.node.id, message.generation, agent.node.worker_count));
    }
  }

  void set(RendezvousState next) {
    const RendezvousState before = std::exchange(state_, std::move(next));
    ASSERT_TRUE(!before.ended() || state_ == before) << "an end is for good";
    ASSERT_GE(state_.generation, before.generation);
    ASSERT_LE(state_.generation, before.generation + 1);
    ASSERT_LE(state_.restarts, rules_.max_restarts);
    if (state_.generation > before.generation) check_new_generation();
    ASSERT_FALSE(state_.phase == Phase::kFailed && state_.cause.empty());
  }

  void check_new_generation() {
    ASSERT_EQ(state_.phase, Phase::kRunning);
    const int count = static_cast<int>(state_.nodes.size());
    ASSERT_GE(count, rules_.min_nodes);
    ASSERT_LE(count, rules_.max_nodes);
    int next_rank = 0;
    for (int i = 0; i < count; ++i) {
      const RendezvousNode& node = state_.nodes[static_cast<std::size_t>(i)];
      const auto placement = placement_of(state_, node.id);
      ASSERT_TRUE(placement);
      ASSERT_EQ(placement->node_rank, i) << "no node twice";
      ASSERT_EQ(placement->first_rank, next_rank);
      next_rank += node.worker_count;
    }
    for (const RendezvousNode& node : state_.nodes) {
      ASSERT_EQ(placement_of(state_, node.id)->world_size, next_rank);
    }
    ASSERT_TRUE(generations_.emplace(state_.generation, state_.nodes).second);
  }

  void say(const Message& message) {
    messages_.push_back(message);
    agents_[message.agent].reported = message;
  }

  void save() { saved_ = state_; }

  // What is not saved nobody is told of.
  void look(Agent& agent) {
    if (version_of(saved_) == version_of(state_)) agent.known = state_;
  }

  void take_over() {
    state_ = saved_;
    std::erase_if(generations_, [&](const auto& entry) { return entry.first > state_.generation; });
    for (const Agent& agent : agents_) {
      if (agent.alive && !agent.ended && agent.reported) messages_.push_back(*agent.reported);
    }
  }

  void act(std::size_t number) {
    Agent& agent = agents_[number];
    switch (next_action(view_of(agent.known, agent.node.id), agent.running, agent.done)) {
      case AgentAction::kWait:
        return;
      case AgentAction::kJoin:
        say({Message::Kind::kJoin, number, 0});
        return;
      case AgentAction::kStopWorkers:
        agent.running.reset();
        return;
      case AgentAction::kEnd:
        agent.ended = true;
        return;
      case AgentAction::kStartWorkers:
        // Whatever it knows, and however late: a generation that was, with the members that it had.
        ASSERT_EQ(generations_.at(agent.known.generation), agent.known.nodes);
        ASSERT_GT(agent.known.generation, agent.done);
        agent.running = agent.known.generation;
    }
  }

  void end_workers(std::size_t number, Message::Kind how) {
    Agent& agent = agents_[number];
    if (!agent.running) return;
    say({how, number, *agent.running});
    if (how != Message::Kind::kFailed) agent.done = *agent.running;
    agent.running.reset();
  }

  void do_anything() {
    const auto number = static_cast<std::size_t>(draw(0, static_cast<int>(agents_.size()) - 1));
    Agent& agent = agents_[number];
    const bool acts = agent.alive && !agent.ended;
    if (happens_once_in(2)) save();
    switch (draw(1, 15)) {
      case 1:
      case 2:
        if (acts) look(agent);
        return;
      case 3:
      case 4:
        if (acts) act(number);
        return;
      case 5:
      case 6:
      case 7:
        return deliver_any();
      case 8:
        if (acts && happens_once_in(4)) end_workers(number, Message::Kind::kFailed);
        return;
      case 9:
        if (acts && happens_once_in(40)) end_workers(number, Message::Kind::kSucceeded);
        return;
      case 10:  // It dies, or it is only cut off: who keeps the state cannot tell.
        if (!happens_once_in(4)) return;
        if (happens_once_in(2)) agent.alive = false;
        messages_.push_back({Message::Kind::kRemove, number, 0});
        return;
      case 11:  // It is cut off for so long that it stops by itself.
        if (acts && happens_once_in(8)) end_workers(number, Message::Kind::kStopped);
        return;
      case 12:
        if (happens_once_in(8)) add_agent();
        return;
      case 13:
        if (happens_once_in(8)) take_over();
        return;
      case 14:  // It is told to run another number of workers.
        if (!acts || !agent.running || !happens_once_in(8)) return;
        agent.node.worker_count = draw(1, 3);
        say({Message::Kind::kResized, number, *agent.running});
        return;
      default:
        if (const auto timer = timer_of(state_, rules_)) {
          const bool last_call = timer->kind == RendezvousTimer::Kind::kLastCall;
          if (last_call || happens_once_in(500)) set(timed_out(state_, rules_, *timer));
        }
    }
  }

  // No more faults: the job must end, and so must all agents.
  void calm_down() {
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (!agents_[i].alive) messages_.push_back({Message::Kind::kRemove, i, 0});
    }
    for (int turn = 0; turn < 100; ++turn) {
      const RendezvousState before = state_;
      for (const Message& message : std::exchange(messages_, {})) apply(message);
      save();
      bool all_ended = true;
      for (std::size_t i = 0; i < agents_.size(); ++i) {
        Agent& agent = agents_[i];
        if (!agent.alive || agent.ended) continue;
        all_ended = false;
        look(agent);
        act(i);
        if (agent.running == state_.generation && state_.phase == Phase::kRunning) {
          end_workers(i, Message::Kind::kSucceeded);
        }
      }
      if (all_ended) return;
      const auto timer = timer_of(state_, rules_);
      if (timer && messages_.empty() && state_ == before) set(timed_out(state_, rules_, *timer));
    }
    FAIL() << "the job does not end: generation " << state_.generation;
  }

  std::mt19937_64 random_;
  RendezvousRules rules_;
  RendezvousState state_;
  RendezvousState saved_;
  std::vector<Agent> agents_;
  std::vector<Message> messages_;
  std::map<std::uint64_t, std::vector<RendezvousNode>> generations_;  // members of each generation
};

TEST(RendezvousSimulation, ManySeeds) {
  const SimulatedSeeds seeds = simulated_seeds(10'000, 1'000);
  for (std::uint64_t seed = seeds.first; seed < seeds.last; ++seed) {
    SCOPED_TRACE(concat("LOCKSTEP_SIMULATION_SEED=", seed));
    Simulation(seed).run();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep

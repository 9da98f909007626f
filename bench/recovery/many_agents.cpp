// Times the rendezvous of many agents, all in this process, over loopback: from the first
// connection until the last knows its ranks, and from a failed worker until the last knows those of
// the next generation. Counts what each sends and how often it is told something.
//
//   many_agents [JSON] [COUNT...]
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include "launcher/agents/control_client.h"
#include "launcher/agents/control_server.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Status = AgentReport::Status;

struct Figures {
  int agents = 0;
  double first_round_ms = 0;
  double next_round_ms = 0;
  double sent_per_agent = 0;
  double told_per_agent = 0;
};

class Job {
 public:
  explicit Job(int agents)
      : service_({.min_nodes = agents, .max_nodes = agents, .max_restarts = 1}, {}),
        agents_(static_cast<std::size_t>(agents)) {
    UniqueFd listening = bind_tcp("127.0.0.1", 0);
    port_ = bound_port(listening.get());
    ::listen(listening.get(), 4'096);
    server_ = std::make_unique<ControlServer>(
        io_, service_, ControlServer::Settings{.job = "bench", .secret = "of the benchmark"},
        std::move(listening));
  }

  Figures run() {
    Figures figures{.agents = static_cast<int>(agents_.size())};
    Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < agents_.size(); ++i) begin(i);
    run_until_generation(1);
    figures.first_round_ms = ms_since(start);
    start = Clock::now();
    Agent& victim = agents_.back();
    victim.report.fault = {.text = "a worker failed"};
    say(victim, Status::kFailed);
    run_until_generation(2);
    figures.next_round_ms = ms_since(start);
    double sent = 0;
    double told = 0;
    for (const Agent& agent : agents_) {
      sent += agent.sent;
      told += agent.told;
    }
    figures.sent_per_agent = sent / static_cast<double>(agents_.size());
    figures.told_per_agent = told / static_cast<double>(agents_.size());
    return figures;
  }

 private:
  struct Agent {
    std::unique_ptr<ControlClient> client{};
    AgentReport report{};
    std::uint64_t done = 0;
    std::optional<Clock::time_point> seen{};
    int sent = 0;
    int told = 0;
  };

  static double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

  void begin(std::size_t number) {
    Agent& agent = agents_[number];
    const std::string name = concat("machine-", number);
    agent.report.node = {.id = name, .name = concat(name, " (pid 1000)"), .host = name};
    agent.client = std::make_unique<ControlClient>(
        io_, ControlClient::Settings{.job = "bench",
                                     .secret = "of the benchmark",
                                     .host = "127.0.0.1",
                                     .port = port_,
                                     .keep_alive_interval = std::chrono::minutes(1)});
    say(agent, Status::kReady);
  }

  static void say(Agent& agent, Status status) {
    agent.report.status = status;
    agent.client->report(agent.report);
    ++agent.sent;
  }

  // As a launcher does.
  static void act(Agent& agent) {
    const AgentView& view = agent.client->told()->view;
    const bool runs = agent.report.status == Status::kRunning;
    const auto running = runs ? std::optional(agent.report.generation) : std::nullopt;
    switch (next_action(view, running, agent.done)) {
      case AgentAction::kStartWorkers:
        agent.report.generation = view.generation;
        return say(agent, Status::kRunning);
      case AgentAction::kStopWorkers:
        agent.done = agent.report.generation;
        return say(agent, Status::kIdle);
      case AgentAction::kJoin:
        if (agent.report.status == Status::kReady) return;
        if (agent.report.status == Status::kFailed) agent.done = agent.report.generation;
        agent.report.generation = view.generation;
        return say(agent, Status::kReady);
      case AgentAction::kWait:
      case AgentAction::kEnd:
        return;
    }
  }

  void run_until_generation(std::uint64_t generation) {
    const Deadline deadline = Deadline::after(std::chrono::minutes(1));
    std::size_t there = 0;
    while (there < agents_.size() && !deadline.passed()) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(10));
      io_.poll();
      there = 0;
      for (Agent& agent : agents_) {
        const auto contact = agent.client->last_contact();
        if (contact && contact != agent.seen) {
          agent.seen = contact;
          ++agent.told;
          act(agent);
        }
        there += agent.report.status == Status::kRunning && agent.report.generation == generation;
      }
    }
    if (there < agents_.size()) throw Error(concat(there, " agents of ", agents_.size(), " met"));
  }

  boost::asio::io_context io_{1};
  RendezvousService service_;
  std::uint16_t port_ = 0;
  std::unique_ptr<ControlServer> server_;
  std::vector<Agent> agents_;
};

}  // namespace

int run_many_agents(int argc, char** argv) {
  std::vector<int> counts;
  for (int i = 2; i < argc; ++i) counts.push_back(parse_number<int>(argv[i]).value());
  if (counts.empty()) counts = {16, 64, 256};
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%8s %16s %16s %16s %16s\n", "agents", "first round, ms", "next round, ms",
              "sent per agent", "told per agent");
  for (const int count : counts) {
    const Figures figures = Job(count).run();
    std::printf("%8d %16.1f %16.1f %16.2f %16.2f\n", figures.agents, figures.first_round_ms,
                figures.next_round_ms, figures.sent_per_agent, figures.told_per_agent);
    rows.push_back({{"agents", figures.agents},
                    {"first_round_ms", figures.first_round_ms},
                    {"next_round_ms", figures.next_round_ms},
                    {"sent_per_agent", figures.sent_per_agent},
                    {"told_per_agent", figures.told_per_agent}});
  }
  if (argc > 1) std::ofstream(argv[1]) << rows.dump(2) << '\n';
  return 0;
}

}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::run_many_agents(argc, argv);
}

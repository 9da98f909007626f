#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// One machine of a job, as its agent announces it.
struct RendezvousNode {
  std::string id{};    ///< of this start of the agent: one that was lost comes back as another
  std::string name{};  ///< for people: its host, and the process there
  std::string host{};  ///< the same for all agents of a machine
  int worker_count = 1;
  std::string role = "default";
  std::optional<int> rank{};  ///< its place, where the user numbers the machines
  /// Where rank 0 serves the job's store if this becomes the first machine: a socket is bound
  /// there.
  std::string store_host{};
  std::uint16_t store_port = 0;
  /// What has to be the same on all machines, "; " between its parts, always in one order:
  /// "lockstep 0.1.0; --nnodes=2". Empty: not known.
  std::string agreement{};
  /// By which files of different content are told apart, of the program; empty: not known.
  std::string program{};
  bool operator==(const RendezvousNode&) const = default;
};

struct RendezvousRules {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;      ///< of the whole job, after failures of workers
  int most_same_faults = 3;  ///< so often in a row the same fault at the same place ends the job
  /// A machine that is gone may be replaced by another; if not, the job fails with it.
  bool machines_may_change = true;
};

struct WorkerFault {
  std::string text{};   ///< the worker that failed first, and how: "rank 3: killed by SIGSEGV"
  std::string place{};  ///< what it was at, as its error says; empty: not known
  int status = 1;       ///< as a shell says it
  /// A worker, perhaps of another machine, did not do its part in time.
  bool is_hang = false;
  /// The worker had not answered since that generation, which ended without its failure being
  /// known; 0: it took part in the one that it ended.
  std::uint64_t silent_since = 0;
  /// The job cannot go on, whatever is started again.
  bool is_final = false;
  bool operator==(const WorkerFault&) const = default;
};

/// Somebody's wish that the job ends on all machines.
struct JobStop {
  std::string by{};      ///< for the cause: "root on host (lockstep stop)"; empty: there is no wish
  bool at_once = false;  ///< workers are given no time to end by themselves
  bool operator==(const JobStop&) const = default;
};

/// Why the last generation ended or the job failed. RendezvousState::cause is the same for people.
enum class GenerationEnd {
  kNone,  ///< no generation has ended
  kWorkerFailed,
  kMachineJoined,
  kMachineGone,    ///< left or was lost
  kMachineCutOff,  ///< it stopped its workers by itself
  kScaled,
  kNotEnoughMachines,
  kGivenUp,    ///< the rendezvous cannot continue
  kPreempted,  ///< the workers saved their state and ended
  kStopped,
  kStoppedAtOnce,  ///< and the workers are given no time to end by themselves
};
/// By a request to stop.
bool is_stop(GenerationEnd end);
/// By such a request or a preemption: nothing has failed.
bool is_wanted(GenerationEnd end);

/// What the agents of a job agree on: a value that each event turns into the next, with no clock
/// and no network. Whoever keeps it (one agent's control service, or etcd by compare-and-swap)
/// applies the events below one after another; an event that is delivered twice, late, or of an
/// earlier generation changes nothing.
///
/// Nodes gather for a generation, and then run its workers. A change of membership or a failed
/// worker ends the generation on all nodes: each stops its workers and joins the next. A node keeps
/// its place among those that remain.
/// Source of the rules: torchrun's dynamic rendezvous, but for the generation number in every key,
/// and for generations after the first, which start as soon as all that are alive are there.
struct RendezvousState {
  enum class Phase { kGathering, kRunning, kSucceeded, kFailed };
  static bool is_end(Phase phase) { return phase == Phase::kSucceeded || phase == Phase::kFailed; }

  Phase phase = Phase::kGathering;
  std::uint64_t generation = 0;  ///< of the generation that runs or ran last; 0: none has
  std::uint64_t gathering = 1;   ///< number of the gathering, for its timer
  /// Gathering: those that have joined, in that order. Else the members, by node rank.
  std::vector<RendezvousNode> nodes;
  /// Ready, but not in the generation: beyond max_nodes.
  std::vector<RendezvousNode> waiting;
  /// Gathering: members of the generation before that are alive and have yet to join, by node rank.
  std::vector<RendezvousNode> expected;
  /// Gathering: ids of the members of the generation before, by node rank.
  std::vector<std::string> last_members;
  /// Running: ids of those whose workers have all ended well.
  std::set<std::string> succeeded;
  int restarts = 0;
  /// The last generation whose end is one of the restarts; 0: none.
  std::uint64_t restarted_after = 0;
  /// The last fault, and how often in a row it has been the same.
  WorkerFault fault;
  int same_faults = 0;
  /// Why the last generation ended, in a line; of a job that failed, why.
  std::string cause;
  GenerationEnd end = GenerationEnd::kNone;
  /// Id of the node whose worker the last fault is of; empty: of none.
  std::string faulty;

  bool ended() const { return is_end(phase); }
  bool operator==(const RendezvousState&) const = default;
};

/// Another with every event that concerns more than one agent.
struct RendezvousVersion {
  RendezvousState::Phase phase = RendezvousState::Phase::kGathering;
  std::uint64_t gathering = 0;
  std::uint64_t generation = 0;
  int status = 0;  ///< of the last fault: an end can be hurried
  bool operator==(const RendezvousVersion&) const = default;
};
RendezvousVersion version_of(const RendezvousState& state);

/// What is to happen when nothing else does; whoever runs it starts anew when it changes.
struct RendezvousTimer {
  enum class Kind {
    kJoin,      ///< too few nodes: the job fails
    kLastCall,  ///< enough nodes: the generation starts without more
  };
  Kind kind;
  std::uint64_t gathering;
  bool operator==(const RendezvousTimer&) const = default;
};
std::optional<RendezvousTimer> timer_of(const RendezvousState& state, const RendezvousRules& rules);

/// The events. Each returns the state after it.
RendezvousState join(RendezvousState state, const RendezvousRules& rules,
                     const RendezvousNode& node);
/// It was lost, or leaves. `how`: "left", for the cause.
RendezvousState remove(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       const std::string& how);
RendezvousState worker_failed(RendezvousState state, const RendezvousRules& rules,
                              const std::string& id, std::uint64_t generation,
                              const WorkerFault& fault);
/// A member has stopped its workers by itself, as one does that was cut off, and would start again.
RendezvousState workers_stopped(RendezvousState state, const RendezvousRules& rules,
                                const std::string& id, std::uint64_t generation);
/// A member would run another number of workers, with which it will join again.
RendezvousState resize(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       std::uint64_t generation, int worker_count);
/// The job cannot go on.
RendezvousState give_up(RendezvousState state, const std::string& cause);
/// The job ends, as one that failed by SIGTERM. One that ends so already can be hurried.
RendezvousState stop(RendezvousState state, const JobStop& wish);
RendezvousState workers_succeeded(RendezvousState state, const std::string& id,
                                  std::uint64_t generation);
RendezvousState timed_out(RendezvousState state, const RendezvousRules& rules,
                          const RendezvousTimer& timer);

/// Where the workers of a member stand in the generation that runs.
struct NodePlacement {
  int node_rank = 0;
  int node_count = 1;
  int first_rank = 0;
  int world_size = 1;
  /// Among workers of the same role.
  int first_role_rank = 0;
  int role_world_size = 1;
  /// Where the job's store is.
  std::string store_host{};
  std::uint16_t store_port = 0;
  bool operator==(const NodePlacement&) const = default;
};
/// Nothing for a node that is no member, or when no generation runs.
std::optional<NodePlacement> placement_of(const RendezvousState& state, const std::string& id);

/// What an agent knows of the job: the part of the rendezvous that concerns it, of the same size
/// however many machines there are.
struct AgentView {
  RendezvousState::Phase phase = RendezvousState::Phase::kGathering;
  std::uint64_t generation = 0;
  /// It has joined, and need not again.
  bool is_there = false;
  /// Of a member of the generation that runs.
  std::optional<NodePlacement> placement{};
  int restarts = 0;
  /// Why the last generation ended, or why the job failed; then the exit code of the job, too.
  std::string cause{};
  GenerationEnd end = GenerationEnd::kNone;
  /// The cause is a failure that this agent reported.
  bool is_own_fault = false;
  int status = 0;
  /// Gathering: the last generation ended because a worker did not do its part in time.
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

bool contains_node(const std::vector<RendezvousNode>& nodes, const std::string& id);

/// Names of nodes for people, "a, b"; "none"; of many the first.
std::string names_of(const std::vector<RendezvousNode>& nodes);

}  // namespace lockstep::inline internal

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// One machine of a job, as its agent describes it.
struct RendezvousNode {
  std::string id{};    ///< of this agent process: a restarted agent has another
  std::string name{};  ///< for people: its host and process
  std::string host{};  ///< the same for all agents of a machine
  int worker_count = 1;
  std::string role = "default";
  std::optional<int> rank{};  ///< its node rank, if the user numbers the machines
  /// Address of the job's store, served by rank 0, if this becomes the first machine: a socket is
  /// bound there.
  std::string store_host{};
  std::uint16_t store_port = 0;
  /// Properties that must be equal on all machines, separated by "; ", always in the same order:
  /// "lockstep 0.1.0; --nnodes=2". Empty: unknown.
  std::string agreement{};
  /// Fingerprint of the program file; empty: unknown.
  std::string program{};
  bool operator==(const RendezvousNode&) const = default;
};

/// Rules of a job's rendezvous.
struct RendezvousRules {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;      ///< of the whole job, after failures of workers
  int most_same_faults = 3;  ///< so many equal faults in a row end the job
  /// Other machines may replace a lost one; if false, the job fails when it loses a machine.
  bool machines_may_change = true;
};

/// A worker's failure, for the rendezvous.
struct WorkerFault {
  std::string text{};   ///< the worker that failed first, and how: "rank 3: killed by SIGSEGV"
  std::string place{};  ///< identifies the failure, see fault_of(); empty: unknown
  int status = 1;       ///< exit code, 128 + n for signal n
  /// A worker, possibly of another machine, did not enter a collective in time.
  bool is_hang = false;
  /// The worker has not answered since this generation, which ended for another cause; 0: it took
  /// part in the generation that its failure ended.
  std::uint64_t silent_since = 0;
  /// The job cannot continue, even with restarted workers.
  bool is_final = false;
  bool operator==(const WorkerFault&) const = default;
};

/// A request to stop the job on all machines.
struct JobStop {
  std::string by{};      ///< its source: "root on host (lockstep stop)"; empty: no request
  bool at_once = false;  ///< kill the workers without a grace period
  bool operator==(const JobStop&) const = default;
};

/// Why the last generation ended or the job failed; RendezvousState::cause says the same for
/// people.
enum class GenerationEnd {
  kNone,  ///< no generation has ended
  kWorkerFailed,
  kMachineJoined,
  kMachineGone,    ///< left or was lost
  kMachineCutOff,  ///< a machine lost the rendezvous and stopped its workers
  kScaled,
  kNotEnoughMachines,
  kGivenUp,    ///< the rendezvous cannot continue
  kPreempted,  ///< the workers saved their state and ended
  kStopped,
  kStoppedAtOnce,  ///< without a grace period for the workers
};
/// Whether a request stopped the job.
bool is_stop(GenerationEnd end);
/// Whether a request stopped the job or it was preempted: nothing failed.
bool is_wanted(GenerationEnd end);

/// The shared state of a job's agents: a value that each event turns into the next, without clock
/// and network. The agent that serves the rendezvous applies events one after another. An event
/// that is late, delivered twice or of an earlier generation changes nothing.
///
/// Nodes gather for a generation and then run its workers. A change of membership or a failed
/// worker ends the generation on all nodes: each stops its workers and joins the next. Remaining
/// nodes keep their order.
///
/// Source of the rules: torchrun's dynamic rendezvous. Differences: every key has the generation
/// number, and generations after the first start as soon as all live nodes have joined.
struct RendezvousState {
  enum class Phase { kGathering, kRunning, kSucceeded, kFailed };
  static bool is_end(Phase phase) { return phase == Phase::kSucceeded || phase == Phase::kFailed; }

  Phase phase = Phase::kGathering;
  std::uint64_t generation = 0;  ///< of the generation that runs or ran last; 0: none has
  std::uint64_t gathering = 1;   ///< number of the gathering, identifies its timer
  /// Gathering: the nodes that have joined, in that order. Else the members, by node rank.
  std::vector<RendezvousNode> nodes;
  /// Nodes that have joined but exceed max_nodes.
  std::vector<RendezvousNode> waiting;
  /// Gathering: live members of the last generation that have not joined yet, by node rank.
  std::vector<RendezvousNode> expected;
  /// Gathering: ids of the members of the last generation, by node rank.
  std::vector<std::string> last_members;
  /// Running: ids of the nodes whose workers all ended with exit code 0.
  std::set<std::string> succeeded;
  int restarts = 0;
  /// The last generation whose end was counted as a restart; 0: none.
  std::uint64_t restarted_after = 0;
  /// The last fault.
  WorkerFault fault;
  /// Number of equal faults in a row.
  int same_faults = 0;
  /// Why the last generation ended or the job failed, in one line.
  std::string cause;
  GenerationEnd end = GenerationEnd::kNone;
  /// Id of the node of the last fault's worker; empty: none.
  std::string faulty;

  bool ended() const { return is_end(phase); }
  bool operator==(const RendezvousState&) const = default;
};

/// Differs after each event that concerns more than one agent.
struct RendezvousVersion {
  RendezvousState::Phase phase = RendezvousState::Phase::kGathering;
  std::uint64_t gathering = 0;
  std::uint64_t generation = 0;
  int status = 0;  ///< of the last fault: `lockstep stop` at once changes the end
  bool operator==(const RendezvousVersion&) const = default;
};
RendezvousVersion version_of(const RendezvousState& state);

/// The timer of a state: restart it when it changes; apply timed_out() when it expires.
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

/// Events. Each returns the next state.
RendezvousState join(RendezvousState state, const RendezvousRules& rules,
                     const RendezvousNode& node);
/// A node was lost or leaves. `how`: "left" or "was lost", for the cause.
RendezvousState remove(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       const std::string& how);
/// A worker of a member failed.
RendezvousState worker_failed(RendezvousState state, const RendezvousRules& rules,
                              const std::string& id, std::uint64_t generation,
                              const WorkerFault& fault);
/// A member has stopped its workers because it was cut off, and is ready again.
RendezvousState workers_stopped(RendezvousState state, const RendezvousRules& rules,
                                const std::string& id, std::uint64_t generation);
/// A member changes its number of workers and will rejoin.
RendezvousState resize(RendezvousState state, const RendezvousRules& rules, const std::string& id,
                       std::uint64_t generation, int worker_count);
/// The job cannot continue.
RendezvousState give_up(RendezvousState state, const std::string& cause);
/// The job ends as if SIGTERM had stopped it; a request with at_once replaces one without.
RendezvousState stop(RendezvousState state, const JobStop& wish);
/// All workers of a member ended with exit code 0.
RendezvousState workers_succeeded(RendezvousState state, const std::string& id,
                                  std::uint64_t generation);
/// A timer expired.
RendezvousState timed_out(RendezvousState state, const RendezvousRules& rules,
                          const RendezvousTimer& timer);

/// Ranks of a member's workers in the running generation.
struct NodePlacement {
  int node_rank = 0;
  int node_count = 1;
  int first_rank = 0;
  int world_size = 1;
  /// Ranks among workers of the same role.
  int first_role_rank = 0;
  int role_world_size = 1;
  /// Address of the job's store.
  std::string store_host{};
  std::uint16_t store_port = 0;
  bool operator==(const NodePlacement&) const = default;
};
/// Empty for a node that is no member, and while no generation runs.
std::optional<NodePlacement> placement_of(const RendezvousState& state, const std::string& id);

/// The part of the rendezvous that concerns one agent; its size is independent of the number of
/// machines.
struct AgentView {
  RendezvousState::Phase phase = RendezvousState::Phase::kGathering;
  std::uint64_t generation = 0;
  /// The agent has joined the next or running generation.
  bool is_there = false;
  /// Of a member of the running generation.
  std::optional<NodePlacement> placement{};
  int restarts = 0;
  /// Why the last generation ended or the job failed, in one line.
  std::string cause{};
  GenerationEnd end = GenerationEnd::kNone;
  /// This agent reported the failure that is the cause.
  bool is_own_fault = false;
  /// Exit code of a failed job.
  int status = 0;
  /// Gathering: the last generation ended because a worker did not enter a collective in time.
  bool is_hang = false;

  bool ended() const { return RendezvousState::is_end(phase); }
  bool operator==(const AgentView&) const = default;
};
/// The view of one agent.
AgentView view_of(const RendezvousState& state, const std::string& id);

/// Next action of an agent.
enum class AgentAction { kWait, kJoin, kStartWorkers, kStopWorkers, kEnd };
/// Next action of an agent. `running`: the generation whose workers it runs; empty: none. `done`:
/// the generation whose workers all ended with exit code 0; 0: none.
AgentAction next_action(const AgentView& view, std::optional<std::uint64_t> running,
                        std::uint64_t done);

/// Whether a node with this id is in the list.
bool contains_node(const std::vector<RendezvousNode>& nodes, const std::string& id);

/// Names of nodes for people: "a, b", "none", or the first eight and how many more.
std::string names_of(const std::vector<RendezvousNode>& nodes);

}  // namespace lockstep::inline internal

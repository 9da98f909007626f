#pragma once

#include "launcher/supervise/job_agent.h"
#include "launcher/supervise/simulated_job.h"

namespace lockstep::inline internal {

// Timeout of a rank that waits for another, in a collective or a rendezvous.
inline constexpr std::chrono::seconds kSimulatedCollectiveTimeout{3};

/// A worker's process as it is, not as the launcher sees it.
struct SimulatedJob::Process {
  enum class Doing {
    kBegins,   ///< has sent nothing
    kWarmsUp,  ///< as a standby worker
    kWaits,    ///< for a rank
    kTrains,
    kIsDone,
    kEnds,  ///< the system frees its memory
    kGone
  };

  Machine* machine = nullptr;
  WorkerId worker = 0;
  pid_t pid = 0;
  bool is_resilient = true;
  Doing doing = Doing::kBegins;
  std::uint64_t generation = 0;
  std::uint64_t asked_to_leave = 0;  ///< the last generation that it was asked to leave
  int rank = -1;
  bool hangs = false;  ///< reads and sends nothing
  bool hung_in_group = false;
  bool link_is_open = true;
  bool ignores_sigterm = false;
  bool is_stuck = false;  ///< in the kernel: cannot be killed
  bool failed_by_itself = false;
  bool leaves_children = false;
  bool children_ignore_sigterm = false;
  bool has_children = false;
  bool is_in_collective = false;
  bool has_handler = false;
  Time ended_at{};
  std::vector<WorkerMessage> said{};
  // What the launcher knows about it, for checks.
  bool is_known_kept = false;         ///< it read that the worker keeps its state
  bool is_known_to_train_on = false;  ///< it read that the worker trains without recovery
  bool is_known_to_wait = false;      ///< it read DeadlineExpired
  bool is_known_to_give_up = false;
  std::optional<Time> known_done_at{};
  std::optional<Time> told_to_end_at{};
  std::optional<Time> blocked_since{};
  bool was_stopped = false;  ///< with all others
  bool blocks_signals = false;

  bool is_alive() const { return doing != Doing::kGone; }
  /// Step of the training.
  std::int64_t step() const { return static_cast<std::int64_t>(generation) * 100; }
  bool is_active() const { return is_alive() && doing != Doing::kEnds && !hangs; }
};

/// A machine with its agent.
struct SimulatedJob::Machine {
  Machine(int of, const JobAgentOptions& options, const RendezvousNode& node)
      : number(of), agent(options, node) {}

  int number;
  JobAgent agent;
  bool is_lost = false;
  bool has_ended = false;
  bool is_cut_off = false;
  std::optional<Time> must_end_by{};
  struct Left {
    WorkerId worker = 0;
    LeftGroup message{};
    Time at{};
  };
  std::vector<Left> left{};  ///< of the generation that runs
  std::optional<Time> generation_began{};
  std::optional<Time> hang_explained{};
  std::optional<Time> standby_missing{};
  bool must_kill_at_once = false;
  AgentView view{};
  bool is_reached = false;
  std::uint16_t store_port = 0;
  bool has_wakeup = false;
  Time wakes_at{};
  std::uint64_t wakeup = 0;
  std::optional<SupervisionState> supervision{};
  std::vector<SupervisionEvent> inbox{};
  std::map<WorkerId, Process*> processes{};
  // Connection to the server.
  Time last_arrival{};
  Time last_view_arrival{};
  std::uint64_t messages_to_server = 0;
  std::uint64_t messages_from_server = 0;
  AgentView told{};

  const std::string& id() const { return agent.report().node.id; }
  bool can_act() const { return !has_ended && !is_lost; }
};

/// The ranks of a generation as they join.
struct SimulatedJob::Group {
  int world_size = 0;
  std::map<int, Process*> members{};
  bool is_broken = false;
  bool is_complete = false;
};

}  // namespace lockstep::inline internal

#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/supervise/supervision.h"

namespace lockstep::inline internal {

inline constexpr int kMostFailedStandbys = 3;
// Time for a worker to leave its group, when asked or when it is in a collective and leaves by
// itself, on a machine that may be busy.
inline constexpr std::chrono::milliseconds kTimeToLeave{500};
// Time for a worker between generations to end after its connection closed.
inline constexpr std::chrono::milliseconds kTimeToEnd{10'000};

inline bool has_passed(const std::optional<SupervisionState::Time>& time,
                       SupervisionState::Time now) {
  return time && *time <= now;
}

inline bool any_worker(const SupervisionState& state, auto&& predicate) {
  return std::ranges::any_of(state.workers,
                             [&](const auto& entry) { return predicate(entry.second); });
}

inline bool any_done(const SupervisionState& state) {
  return any_worker(
      state, [](const SupervisedWorker& worker) { return worker.state == WorkerState::kDone; });
}

/// One step of the supervision. Its functions are in supervision.cpp and the supervision_*.cpp
/// files.
class SupervisionStep {
 public:
  using Time = SupervisionState::Time;

  SupervisionStep(SupervisionState& state, Time now) : state_(state), now_(now) {}

  std::vector<SupervisionAction> run(const SupervisionEvent& event) {
    std::visit([&](const auto& what) { on(what); }, event);
    return std::move(actions_);
  }

 private:
  using Worker = SupervisedWorker;
  using State = WorkerState;
  using milliseconds = std::chrono::milliseconds;

  void on(const happened::GenerationReady& event);
  void on(const happened::WorkerStarted& event);
  void on(const happened::MessageReceived& event);
  void on(const happened::LinkClosed& event);
  void on(const happened::RankNotRead& event);
  void on(const happened::WorkerEnded& event);
  void on(const happened::WorkerSuspended& event);
  void on(const happened::GroupEmptied& event);
  void on(const happened::StopSignal& event);
  void on(const happened::NoticeSignal& event);
  void on(const happened::SignalFateRead& event);
  void on(const happened::HangExplained& event);
  void on(const happened::HangingPlacesRead& event);
  void on(const happened::ViewChanged& event) { state_.view = event.view; }
  void on(const happened::RendezvousLost&) {
    stop(state_.stop.on_failure(now_), /*spares_done=*/true);
  }
  void on(const happened::DecisionDue&);

  void receive(WorkerId id, Worker& worker, const KeepsState& message);
  void receive(WorkerId id, Worker& worker, const LeftGroup& message);
  void receive(WorkerId id, Worker& worker, const TrainingDone& message);
  void receive(WorkerId id, Worker& worker, const TookRank& message);
  void receive(WorkerId id, Worker& worker, const DeadlineExpired& message);
  void receive(WorkerId, Worker& worker, const CannotRecover&) {
    worker.exit.cannot_recover = true;
  }
  void receive(WorkerId, Worker&, const StateFile&) {}
  void receive(WorkerId, Worker&, const CallsFile&) {}
  void receive(WorkerId, Worker&, const PythonStacksPipe&) {}

  Worker* find(WorkerId id) {
    const auto found = state_.workers.find(id);
    return found == state_.workers.end() ? nullptr : &found->second;
  }
  void act(SupervisionAction action) { actions_.push_back(std::move(action)); }
  bool is_stopping() const { return state_.stop.started(); }
  bool is_between() const {
    return state_.phase == SupervisionPhase::kBetween ||
           state_.phase == SupervisionPhase::kPreempted;
  }
  void count_end(Worker& worker);
  void note_end_between(const WorkerExit& exit);
  void note_failed_standby(const WorkerExit& exit);
  void forget_old_exits();
  void fill(int local_rank, int rank, bool is_replacement);
  void start(int local_rank, int rank);
  void place(WorkerId id, Worker& worker, int local_rank, int rank);
  bool is_replaceable(const WorkerExit& exit, State before) const;
  void replace(const WorkerExit& exit, const std::string& why);
  void say_replacements();
  void dismiss(WorkerId id, Worker& worker, milliseconds patience);
  void stop(int signal, bool spares_done = false);
  void say_who_ends(const std::vector<int>& ranks);
  void keep_deadlines();
  void explain_hang(std::optional<AwaitedCall> awaited);
  void search_hang();
  void ask_all_to_leave();
  void ask_to_leave();
  void kill_late_to_join();
  void kill_late_to_leave();
  const std::string& reason_of_search() const;
  std::string late_rank(WorkerId waited, const Worker& worker);
  void note_hanging(WorkerId id, Worker& worker, std::string why);
  void kill_hanging();
  void end_generation_if_over();
  bool keep_workers();
  void ask_for_generation();
  void start_standby();
  void dismiss_standbys();
  void finish();

  SupervisionState& state_;
  const Time now_;
  std::vector<SupervisionAction> actions_;
  std::vector<WorkerId> hanging_;     ///< workers that kill_hanging() kills
  std::vector<WorkerId> looked_for_;  ///< those whose stacks it reads first
};

}  // namespace lockstep::inline internal

// The search for a rank that is late.
#include <algorithm>
#include <csignal>

#include "diagnose/verdict/worker_text.h"
#include "launcher/supervise/supervision_step.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::milliseconds kTimeToLeaveCollective{5'000};
// Between the deadlines of ranks that wait for the same one.
constexpr std::chrono::milliseconds kSameHang{2'000};
// From an expired deadline to the end of a worker that does not catch it.
constexpr std::chrono::milliseconds kEndsOfDeadline{10'000};
// From SIGKILL to the end of the worker.
constexpr std::chrono::milliseconds kEnds{1'000};

}  // namespace

// At once: the ranks that wait leave their group soon.
void SupervisionStep::explain_hang(std::optional<AwaitedCall> awaited) {
  if (state_.hang_explained_until && *state_.hang_explained_until > now_) return;
  action::ExplainHang explain{.awaited = std::move(awaited)};
  for (const auto& [id, worker] : state_.workers) {
    const bool has_rank = worker.is_alive() && !worker.is_standby();
    if (has_rank && worker.state != State::kDismissed) explain.workers.push_back(id);
  }
  act(std::move(explain));
}

void SupervisionStep::on(const happened::HangExplained& event) {
  // A search says of no rank that it is late.
  if (state_.search != HangSearch::kExplaining) state_.late_worker.reset();
  for (const auto& [id, place] : event.places) {
    Worker* const worker = find(id);
    if (worker == nullptr) continue;
    worker->exit.hangs_in = place.hangs_in;
    worker->is_in_collective = place.is_in_collective;
    if (place.is_late && !state_.late_worker) state_.late_worker = id;
  }
  state_.hang_explained_until = now_ + kSameHang;
  if (state_.search == HangSearch::kExplaining) ask_all_to_leave();
}

// Workers that wait in a collective leave soon, or are asked to; the others compute, or hang.
void SupervisionStep::search_hang() {
  if (state_.search != HangSearch::kNone) return;
  state_.search = HangSearch::kExplaining;
  const std::size_t actions = actions_.size();
  explain_hang(std::nullopt);
  // The ranks' own deadlines had it explained a moment ago.
  if (actions_.size() == actions) ask_all_to_leave();
}

void SupervisionStep::ask_all_to_leave() {
  state_.search = HangSearch::kLeaving;
  for (auto& [id, worker] : state_.workers) {
    if (worker.state != State::kRunning && worker.state != State::kRecovering) continue;
    worker.leaves_by = now_ + (worker.is_in_collective ? kTimeToLeaveCollective : kTimeToLeave);
    // That others were late to join says nothing of one that still has the time to.
    if (worker.joins_by) worker.leaves_by = std::max(*worker.leaves_by, *worker.joins_by);
  }
  ask_to_leave();
}

// Their peers may be gone without their notice, and nobody else ends their wait.
void SupervisionStep::ask_to_leave() {
  for (const auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || worker.state == State::kLeft) continue;
    act(action::SendLeaveGroup{id, state_.generation});
  }
}

void SupervisionStep::kill_late_to_join() {
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || !has_passed(worker.joins_by, now_)) continue;
    note_hanging(id, worker,
                 concat("it did not join generation ", state_.generation, " within ",
                        worker.reads_within.count(), " ms"));
  }
}

void SupervisionStep::kill_late_to_leave() {
  if (state_.search != HangSearch::kLeaving) return;
  state_.search = HangSearch::kDone;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_kept() || worker.state == State::kLeft || !worker.leaves_by) continue;
    if (*worker.leaves_by > now_) {
      state_.search = HangSearch::kLeaving;
    } else if (worker.is_in_collective) {
      note_hanging(id, worker, reason_of_search());
    } else {
      // It may have entered a collective since its stack was read.
      state_.search = HangSearch::kLeaving;
      looked_for_.push_back(id);
    }
  }
  if (state_.search == HangSearch::kDone) state_.cause_by = now_;
}

// Who the deadline of another worker, which has ended, waited for. A program may catch the error,
// and fail later.
std::string SupervisionStep::late_rank(WorkerId waited, const Worker& worker) {
  const bool is_why_it_ended = worker.exit.signal == 0 && worker.deadline_expired_at &&
                               now_ - *worker.deadline_expired_at <= kEndsOfDeadline;
  if (!is_why_it_ended || !state_.late_worker || *state_.late_worker == waited) return "";
  const Worker* const late = find(*state_.late_worker);
  if (late == nullptr) return "";
  const std::string& place = late->exit.hangs_in;
  return concat(describe_worker(late->exit), place.empty() ? " hangs" : " hangs in ", place);
}

const std::string& SupervisionStep::reason_of_search() const {
  const std::string& lost = state_.outcome.lost;
  return lost.empty() ? state_.view.cause : lost;
}

// It is replaced as others that end.
void SupervisionStep::note_hanging(WorkerId id, Worker& worker, std::string why) {
  worker.state = State::kHanging;
  worker.exit.late_for = std::move(why);
  state_.hanging_end_by = now_ + kEnds;
  hanging_.push_back(id);
  if (worker.exit.hangs_in.empty()) looked_for_.push_back(id);
}

// A stack that cannot be read takes as long as all of them.
void SupervisionStep::kill_hanging() {
  if (!looked_for_.empty()) act(action::ReadHangingPlaces{std::exchange(looked_for_, {})});
  for (const WorkerId id : std::exchange(hanging_, {})) act(action::SignalGroup{id, SIGKILL});
}

void SupervisionStep::on(const happened::HangingPlacesRead& event) {
  for (const auto& [id, place] : event.places) {
    Worker* const worker = find(id);
    if (worker == nullptr) continue;
    worker->exit.hangs_in = place.hangs_in;
    const bool is_late = state_.search == HangSearch::kLeaving && worker->is_kept() &&
                         worker->state != State::kLeft && has_passed(worker->leaves_by, now_);
    if (!is_late || is_stopping()) continue;
    if (place.is_in_collective) {
      worker->is_in_collective = true;
      *worker->leaves_by += kTimeToLeaveCollective - kTimeToLeave;
    } else {
      note_hanging(id, *worker, reason_of_search());
    }
  }
  kill_hanging();
}

}  // namespace lockstep::inline internal

// Signals that stop all workers, and signals that are forwarded to them.
#include <csignal>

#include "diagnose/verdict/worker_text.h"
#include "launcher/supervise/supervision_step.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

// Blocked for that long without a break, a signal counts as blocked for good, as for sigwait. A
// program that starts another blocks its signals too, on a busy machine for a tenth of a second,
// and may have no handler.
constexpr std::chrono::milliseconds kBlockedForGood{1'000};
// A program starts within that time.
constexpr std::chrono::milliseconds kMostToListen{30'000};

}  // namespace

void SupervisionStep::on(const happened::StopSignal& event) {
  if (state_.outcome.stop_signal == 0) state_.outcome.stop_signal = event.signal;
  if (!is_stopping()) {
    if (is_between()) forget_old_exits();
    act(action::Say{concat(signal_name(event.signal), ": stopping ",
                           count_text(state_.workers.size(), "worker"),
                           "; the second SIGINT (Ctrl-C) kills them")});
  }
  const int signal = state_.stop.on_signal(event.signal, now_);
  stop(signal == 0 && any_done(state_) ? event.signal : signal);
}

// `spares_done`: a worker whose training is complete ends by itself, so that its results are whole;
// it is killed with all others that are left.
void SupervisionStep::stop(int signal, bool spares_done) {
  if (is_stopping() && state_.phase != SupervisionPhase::kFinished)
    state_.phase = SupervisionPhase::kStopping;
  if (signal == 0) return;
  action::SignalAll all{.signal = signal};
  std::vector<int> ranks;
  for (auto& [id, worker] : state_.workers) {
    if (worker.state == State::kDone && spares_done && signal == SIGTERM) {
      all.spared.insert(id);
      ranks.push_back(worker.exit.rank);
    } else if (worker.is_alive() && worker.state != State::kDismissed) {
      worker.state = State::kStopping;
    }
  }
  if (ranks.empty()) {
    state_.sent_sigterm = state_.sent_sigterm || signal == SIGTERM;
  } else {
    say_who_ends(ranks);
  }
  act(std::move(all));
}

void SupervisionStep::say_who_ends(const std::vector<int>& ranks) {
  act(action::Say{concat(rank_list(ranks), ranks.size() == 1 ? " has" : " have",
                         " completed the training or been preempted; time to end: ",
                         std::chrono::duration<double>(state_.options.shutdown_timeout).count(),
                         " s (--shutdown-timeout)")});
}

void SupervisionStep::on(const happened::NoticeSignal& event) {
  for (auto& [id, worker] : state_.workers) {
    if (!worker.is_alive()) continue;
    worker.notices.try_emplace(event.signal, Worker::Notice{.until = now_ + kMostToListen});
    act(action::ReadSignalFate{id, event.signal});
  }
}

// A worker that is starting has no handler yet, and would end.
void SupervisionStep::on(const happened::SignalFateRead& event) {
  Worker* const worker = find(event.worker);
  if (worker == nullptr) return;
  const auto found = worker->notices.find(event.signal);
  if (found == worker->notices.end()) return;
  Worker::Notice& notice = found->second;
  if (event.fate != SignalFate::kBlocked) {
    notice.blocked_until.reset();
  } else if (!notice.blocked_until) {
    notice.blocked_until = now_ + kBlockedForGood;
  }
  if (event.fate == SignalFate::kSpares || has_passed(notice.blocked_until, now_)) {
    act(action::SignalWorker{event.worker, event.signal});
  } else if (notice.until > now_) {
    return;
  } else {
    act(action::Say{concat(signal_name(event.signal), " not forwarded to ",
                           describe_worker(worker->exit),
                           ": the worker has no handler, so the signal would kill it")});
  }
  worker->notices.erase(found);
}

}  // namespace lockstep::inline internal

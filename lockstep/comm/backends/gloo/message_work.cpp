#include "lockstep/comm/backends/gloo/message_work.h"

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/without_signals.h"

namespace lockstep::gloo_backend {
namespace {

using std::chrono::milliseconds;
using Clock = Deadline::Clock;

constexpr Clock::time_point kNever = Clock::time_point::max();

/// The limits of this process, and the thread that looks after them.
class WaitLimits {
 public:
  static WaitLimits& instance() {
    static auto* const limits = new WaitLimits();  // never destroyed
    return *limits;
  }

  void add(const WaitLimit* limit) {
    const MutexLock lock(mutex_);
    start_thread();
    limits_.insert(limit);
    // Else it wakes soon enough; most waits are over by then, and cost no wake-up.
    if (limit->instant() < wakes_at_) {
      wakes_at_ = limit->instant();
      changed_.notify_one();
    }
  }

  // Afterwards nothing is interrupted any more.
  void remove(const WaitLimit* limit) {
    const MutexLock lock(mutex_);
    limits_.erase(limit);
  }

 private:
  void start_thread() LOCKSTEP_REQUIRES(mutex_) {
    if (has_thread_) return;
    try {
      const WithoutSignals without_signals;
      std::thread([this] { interrupt(); }).detach();
      has_thread_ = true;
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void interrupt() {
    MutexLock lock(mutex_);
    for (;;) {
      const auto now = Clock::now();
      wakes_at_ = kNever;
      std::erase_if(limits_, [&](const WaitLimit* limit) LOCKSTEP_REQUIRES(mutex_) {
        if (limit->instant() > now) {
          wakes_at_ = std::min(wakes_at_, limit->instant());
          return false;
        }
        limit->work().abort();  // Gloo remembers it where the wait has not begun yet.
        return true;
      });
      if (wakes_at_ == kNever) {
        changed_.wait(lock.native());
      } else {
        changed_.wait_until(lock.native(), Clock::time_point(wakes_at_));
      }
    }
  }

  Mutex mutex_;
  std::condition_variable changed_;
  std::set<const WaitLimit*> limits_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point wakes_at_ LOCKSTEP_GUARDED_BY(mutex_) = kNever;
  bool has_thread_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// The end of the next slice of a wait until `until`. The last slice has no end before the message's
// deadline, at which Gloo ends the group.
Deadline next_look(Deadline until, Deadline deadline) {
  const auto look = Clock::now() + Connections::kBetweenLooks;
  return look < until.instant() && look < deadline.instant() ? Deadline(look) : until;
}

// Waits until `until`; whether the message is complete.
bool wait_once(c10d::Work& work, Deadline until, Deadline deadline) {
  std::optional<WaitLimit> limit;
  if (until.instant() < deadline.instant()) limit.emplace(work, until);
  return work.wait(std::max({until.remaining(), deadline.remaining(), milliseconds(1)}));
}

// Gloo's wait() says of an aborted message only that it is not complete.
std::exception_ptr aborted() {
  return std::make_exception_ptr(Error("gloo: the message was aborted before it was complete"));
}

}  // namespace

MessageWork::MessageWork(c10::intrusive_ptr<c10d::Backend> backend,
                         c10::intrusive_ptr<c10d::Work> work,
                         std::shared_ptr<std::atomic<int>> threads,
                         std::shared_ptr<Connections> connections, int peer, milliseconds timeout)
    : backend_(std::move(backend)),
      work_(std::move(work)),
      threads_(std::move(threads)),
      connections_(std::move(connections)),
      peer_(peer),
      lost_(*connections_, peer, begun_),
      deadline_(Deadline::after(timeout)) {}

// Where no thread can be made nobody waits for the message yet. The thread has let go of the
// backend, and does not count any more, by the time that the outcome is known: the caller who then
// ends the group ends the backend.
void MessageWork::start_thread() {
  threads_->fetch_add(1);
  try {
    const WithoutSignals without_signals;
    std::thread([outcome = outcome_, work = work_, backend = backend_, threads = threads_,
                 connections = connections_, peer = peer_, begun = begun_,
                 deadline = deadline_]() mutable {
      std::exception_ptr error;
      try {
        const auto is_aborted = [&] {
          const MutexLock lock(outcome->mutex);
          return outcome->is_aborted;
        };
        LostMessage lost(*connections, peer, begun);
        while (!error && !wait_once(*work, next_look(deadline, deadline), deadline)) {
          if (is_aborted()) error = aborted();
          if (!error) error = lost.error_after_wait();
        }
      } catch (...) {
        error = std::current_exception();
      }
      work.reset();
      backend.reset();
      threads->fetch_sub(1);
      const MutexLock lock(outcome->mutex);
      outcome->ended = true;
      outcome->error = std::move(error);
      outcome->changed.notify_all();
    }).detach();
    outcome_->is_awaited = true;
  } catch (const std::system_error&) {
    threads_->fetch_sub(1);
  }
}

void MessageWork::wait_here(Deadline until) {
  bool is_complete = false;
  std::exception_ptr error;
  outcome_->is_awaited = true;
  outcome_->mutex.unlock();
  try {
    is_complete = wait_once(*work_, next_look(until, deadline_), deadline_);
    if (!is_complete) error = lost_.error_after_wait();
  } catch (...) {
    error = std::current_exception();
  }
  outcome_->mutex.lock();
  outcome_->is_awaited = false;
  if (!is_complete && !error && outcome_->is_aborted) error = aborted();
  outcome_->ended = is_complete || error;
  outcome_->error = std::move(error);
  outcome_->changed.notify_all();
}

bool MessageWork::isCompleted() {
  const MutexLock lock(outcome_->mutex);
  if (!outcome_->ended && !outcome_->is_awaited) start_thread();
  return outcome_->ended;
}

bool MessageWork::isSuccess() const {
  const MutexLock lock(outcome_->mutex);
  return outcome_->ended && !outcome_->error;
}

std::exception_ptr MessageWork::exception() const {
  const MutexLock lock(outcome_->mutex);
  return outcome_->error;
}

int MessageWork::sourceRank() const {
  return work_->sourceRank();
}

bool MessageWork::wait(milliseconds timeout) {
  MutexLock lock(outcome_->mutex);
  const Deadline until = timeout == kNoTimeout ? deadline_ : Deadline::after(timeout);
  for (;;) {
    if (!outcome_->ended && !outcome_->is_awaited) wait_here(until);
    if (outcome_->ended) break;
    if (until.passed()) {
      throw WaitExpired(concat("timed out after ", timeout.count(), " ms of waiting"));
    }
    outcome_->changed.wait_for(lock.native(), until.remaining(),
                               [&]() LOCKSTEP_REQUIRES(outcome_->mutex) {
                                 return outcome_->ended || !outcome_->is_awaited;
                               });
  }
  if (outcome_->error) std::rethrow_exception(outcome_->error);
  return true;
}

void MessageWork::abort() {
  {
    const MutexLock lock(outcome_->mutex);
    outcome_->is_aborted = true;
  }
  work_->abort();
}

WaitLimit::WaitLimit(c10d::Work& work, Deadline until) : work_(work), instant_(until.instant()) {
  WaitLimits::instance().add(this);
}

WaitLimit::~WaitLimit() {
  WaitLimits::instance().remove(this);
}

}  // namespace lockstep::gloo_backend

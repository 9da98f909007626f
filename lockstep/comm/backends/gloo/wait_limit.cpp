#include "lockstep/comm/backends/gloo/wait_limit.h"

#include <algorithm>
#include <condition_variable>
#include <set>
#include <system_error>
#include <thread>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/process/without_signals.h"

namespace lockstep::gloo_backend {
namespace {

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

}  // namespace

WaitLimit::WaitLimit(c10d::Work& work, Deadline until) : work_(work), instant_(until.instant()) {
  WaitLimits::instance().add(this);
}

WaitLimit::~WaitLimit() {
  WaitLimits::instance().remove(this);
}

}  // namespace lockstep::gloo_backend

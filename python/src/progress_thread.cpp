#include "python/src/progress_thread.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <pthread.h>

#include "lockstep/os/process/without_signals.h"
#include "python/src/torch_work.h"

namespace lockstep::python {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A program that waits at once is not disturbed.
constexpr milliseconds kFirstLook{1};
// Between two looks at calls under way: at first as long as a peer takes for a chunk, then longer.
constexpr microseconds kShortPause{100};
constexpr microseconds kLongPause{1000};
constexpr milliseconds kHurry{50};
// For so long a thread without work looks by itself: waking it would cost the caller a system call.
constexpr milliseconds kLinger{500};
constexpr milliseconds kLingerPause{2};
// How long the end of the program waits for a callback that blocks.
constexpr milliseconds kMostWaitAtExit{1000};

thread_local bool is_progress_thread = false;
std::atomic<ProgressThread*> current{nullptr};

}  // namespace

ProgressThread& ProgressThread::instance() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { current = nullptr; });
  ProgressThread* thread = current.load();
  if (thread != nullptr) return *thread;
  auto* const made = new ProgressThread();  // never destroyed
  if (current.compare_exchange_strong(thread, made)) return *made;
  delete made;
  return *thread;
}

bool ProgressThread::is_current() {
  return is_progress_thread;
}

void ProgressThread::start_if_needed() {
  if (is_running_) return;
  const internal::WithoutSignals without_signals;
  std::thread([this] { serve(); }).detach();
  is_running_ = true;
}

bool ProgressThread::add(c10::intrusive_ptr<TorchWork> work) {
  const internal::MutexLock lock(mutex_);
  if (stops_) return false;
  added_.push_back(std::move(work));
  start_if_needed();
  if (is_idle_) changed_.notify_all();
  return true;
}

void ProgressThread::stop() {
  std::vector<c10::intrusive_ptr<TorchWork>> left;
  {
    internal::MutexLock lock(mutex_);
    stops_ = true;
    changed_.notify_all();
    changed_.wait_for(lock.native(), kMostWaitAtExit,
                      [this]() LOCKSTEP_REQUIRES(mutex_) { return !is_running_; });
    left.swap(added_);
  }
  // Without the lock: callbacks and the destructors of tensors may wait for the GIL.
  for (const auto& work : left) work->fail_futures();
}

void ProgressThread::serve() {
  struct Watched {
    c10::intrusive_ptr<TorchWork> work;
    Clock::time_point first_look;
  };
  is_progress_thread = true;
  std::vector<Watched> works;
  auto last_news = Clock::now();
  internal::MutexLock lock(mutex_);
  while (!stops_) {
    const auto now = Clock::now();
    if (!added_.empty()) {
      for (auto& work : added_) works.push_back({std::move(work), now + kFirstLook});
      added_.clear();
      last_news = now;
    }
    const auto quiet = now - last_news;
    if (works.empty()) {
      is_idle_ = quiet > kLinger;
      if (is_idle_) {
        changed_.wait(lock.native(),
                      [this]() LOCKSTEP_REQUIRES(mutex_) { return stops_ || !added_.empty(); });
      } else {
        changed_.wait_for(lock.native(), kLingerPause,
                          [this]() LOCKSTEP_REQUIRES(mutex_) { return stops_; });
      }
      is_idle_ = false;
      continue;
    }
    lock.unlock();
    // A future's callbacks may start calls, and so add works.
    auto next_first_look = Clock::time_point::max();
    bool any_is_due = false;
    const auto ended = std::erase_if(works, [&](const Watched& watched) {
      if (watched.first_look > now) {
        next_first_look = std::min(next_first_look, watched.first_look);
        return false;
      }
      any_is_due = true;
      return watched.work->isCompleted();
    });
    if (ended > 0) last_news = Clock::now();
    lock.lock();
    const auto pause = quiet < kHurry ? kShortPause : kLongPause;
    const auto next_look = Clock::now() + pause;
    changed_.wait_until(lock.native(),
                        any_is_due ? next_look : std::max(next_look, next_first_look),
                        [this]() LOCKSTEP_REQUIRES(mutex_) { return stops_; });
  }
  lock.unlock();
  for (const Watched& watched : works) watched.work->fail_futures();
  works.clear();
  lock.lock();
  is_running_ = false;
  changed_.notify_all();
}

}  // namespace lockstep::python

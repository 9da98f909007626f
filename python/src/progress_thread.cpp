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

void ProgressThread::add(c10::intrusive_ptr<TorchWork> work) {
  const std::lock_guard lock(mutex_);
  if (stops_) return;
  added_.push_back(std::move(work));
  start_if_needed();
  if (is_idle_) changed_.notify_all();
}

void ProgressThread::stop() {
  std::unique_lock lock(mutex_);
  stops_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !is_running_; });
  added_.clear();
}

void ProgressThread::serve() {
  is_progress_thread = true;
  std::vector<c10::intrusive_ptr<TorchWork>> works;
  auto last_news = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (!added_.empty()) {
      std::move(added_.begin(), added_.end(), std::back_inserter(works));
      added_.clear();
      last_news = std::chrono::steady_clock::now();
      changed_.wait_for(lock, kFirstLook, [this] { return stops_; });
      continue;
    }
    const auto quiet = std::chrono::steady_clock::now() - last_news;
    if (works.empty()) {
      is_idle_ = quiet > kLinger;
      if (is_idle_) {
        changed_.wait(lock, [this] { return stops_ || !added_.empty(); });
      } else {
        changed_.wait_for(lock, kLingerPause, [this] { return stops_; });
      }
      is_idle_ = false;
      continue;
    }
    lock.unlock();
    // A future's callbacks may start calls, and so add works.
    const auto ended =
        std::erase_if(works, [](const auto& work) { return work->isCompleted(); });
    if (ended > 0) last_news = std::chrono::steady_clock::now();
    lock.lock();
    const auto pause = quiet < kHurry ? kShortPause : kLongPause;
    changed_.wait_for(lock, pause, [this] { return stops_ || !added_.empty(); });
  }
  // Tensors may belong to Python, which the caller of stop() has let go.
  lock.unlock();
  works.clear();
  lock.lock();
  is_running_ = false;
  changed_.notify_all();
}

}  // namespace lockstep::python

#include "lockstep/os/memory/life_mark.h"

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/process/without_signals.h"

namespace lockstep::inline internal {
namespace {

constexpr std::uint32_t kWaitersBit = 0x80000000U;  // FUTEX_WAITERS

// glibc and the kernel keep the holder's thread id in the first word of a robust mutex. Only a
// shortcut: where a libc does otherwise the words never agree and the mutex itself is asked.
std::uint32_t first_word(const pthread_mutex_t& mutex) {
  return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(&mutex), __ATOMIC_ACQUIRE) &
         ~kWaitersBit;
}

void check(const char* operation, int status) {
  if (status != 0) throw SystemError(operation, status);
}

// Runs what is to be done by the thread that holds all marks. Never destroyed.
class MarkThread {
 public:
  // Of this process: a forked one, which has no other threads, begins with none.
  static MarkThread& instance() {
    [[maybe_unused]] static const int registered =
        ::pthread_atfork(nullptr, nullptr, [] { current_ = nullptr; });
    MarkThread* current = current_.load();
    if (current != nullptr) return *current;
    auto* const made = new MarkThread();
    if (current_.compare_exchange_strong(current, made)) return *made;
    delete made;
    return *current;
  }

  int run(const std::function<int()>& action) {
    const MutexLock one_at_a_time(calls_);
    MutexLock lock(mutex_);
    if (!is_running_) start();
    action_ = &action;
    changed_.notify_all();
    while (action_ != nullptr) changed_.wait(lock.native());
    return status_;
  }

 private:
  void start() LOCKSTEP_REQUIRES(mutex_) {
    try {
      const WithoutSignals without_signals;
      std::thread([this] { serve(); }).detach();
    } catch (const std::system_error& error) {
      throw SystemError("starting the thread that holds life marks", error.code().value());
    }
    is_running_ = true;
  }

  [[noreturn]] void serve() {
    MutexLock lock(mutex_);
    for (;;) {
      while (action_ == nullptr) changed_.wait(lock.native());
      const auto* const action = action_;
      lock.unlock();
      const int status = (*action)();
      lock.lock();
      status_ = status;
      action_ = nullptr;
      changed_.notify_all();
    }
  }

  static std::atomic<MarkThread*> current_;
  Mutex calls_;  // locked before mutex_, for the whole of a call
  Mutex mutex_;
  std::condition_variable changed_;
  const std::function<int()>* action_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  int status_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool is_running_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

std::atomic<MarkThread*> MarkThread::current_{nullptr};

}  // namespace

void LifeMark::hold() {
  pthread_mutexattr_t attributes;
  check("making a robust mutex", ::pthread_mutexattr_init(&attributes));
  check("making a robust mutex",
        ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED));
  check("making a robust mutex", ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
  check("making a robust mutex", ::pthread_mutex_init(&mutex_, &attributes));
  ::pthread_mutexattr_destroy(&attributes);
  check("locking a robust mutex",
        MarkThread::instance().run([this] { return ::pthread_mutex_lock(&mutex_); }));
  holder_word_.store(first_word(mutex_), std::memory_order_release);
}

void LifeMark::let_go() noexcept {
  const int status = MarkThread::instance().run([this] { return ::pthread_mutex_unlock(&mutex_); });
  LOCKSTEP_ASSERT(status == 0);
}

bool LifeMark::is_held() noexcept {
  const std::uint32_t held = holder_word_.load(std::memory_order_acquire);
  if (held == 0) return false;
  if (first_word(mutex_) == held) return true;
  const int status = ::pthread_mutex_trylock(&mutex_);
  // glibc 2.36 keeps an inconsistent mutex locked for whoever asks a second time.
  if (status == EOWNERDEAD) ::pthread_mutex_consistent(&mutex_);
  if (status == 0 || status == EOWNERDEAD) ::pthread_mutex_unlock(&mutex_);
  return status == EBUSY;
}

// All threads of a killed process have the signal pending before the first of them ends. The
// barrier waits until each processor has entered the kernel since, where such a thread meets its
// signal.
void LifeMark::wait_for_stopped_threads() noexcept {
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0) return;
  // Kernels with tickless processors (nohz_full) have no such barrier.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace lockstep::inline internal

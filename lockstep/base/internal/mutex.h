#pragma once

#include <mutex>

/// Annotations of what a mutex guards, checked by clang (-Wthread-safety: scripts/lint.sh, and
/// CI for folders without LibTorch). Empty for other compilers.
#ifdef __clang__
#define LOCKSTEP_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define LOCKSTEP_THREAD_SAFETY(attribute)
#endif

/// After a member: access needs the mutex.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_SAFETY(guarded_by(mutex))
/// After a function, or after the parentheses of a lambda: the caller holds the mutex.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_SAFETY(requires_capability(__VA_ARGS__))

namespace lockstep::inline internal {

/// A std::mutex that LOCKSTEP_GUARDED_BY can name. Lock it with MutexLock.
class LOCKSTEP_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() LOCKSTEP_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() LOCKSTEP_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  bool try_lock() LOCKSTEP_THREAD_SAFETY(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a mutex to the end of the scope, as std::unique_lock does.
class LOCKSTEP_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_THREAD_SAFETY(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  /// Adopts a mutex that this thread has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) LOCKSTEP_REQUIRES(mutex)
      : lock_(mutex.mutex_, adopt) {}
  ~MutexLock() LOCKSTEP_THREAD_SAFETY(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() LOCKSTEP_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }
  void unlock() LOCKSTEP_THREAD_SAFETY(release_capability()) { lock_.unlock(); }
  /// For std::condition_variable. Annotate a predicate that reads guarded members with
  /// LOCKSTEP_REQUIRES.
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace lockstep::inline internal

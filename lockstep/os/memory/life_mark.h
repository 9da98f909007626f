#pragma once

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace lockstep::inline internal {

/// A mark in shared memory by which other processes learn within microseconds that this one has
/// died, however it died and whatever memory it held: a robust mutex, which the kernel looks at
/// before it takes a process apart. (Its sockets and its pidfd tell only afterwards, tens of
/// milliseconds later for each gigabyte.)
/// The kernel ties a mutex to a thread: all marks of a process are held by a thread of their own,
/// which the first of them starts and which ends with the process.
/// Threads: hold() and let_go() from any thread of one process; is_held() from any of any process.
/// Lifetime: zeroed shared memory is a mark that was never held; it must stay mapped while held.
class LifeMark {
 public:
  /// Errors: SystemError.
  void hold();
  /// Of a mark that this process holds.
  void let_go() noexcept;
  /// Whether the holder holds it still; false before hold() too.
  bool is_held() noexcept;

  /// After a mark is no longer held: returns when no thread of the process that held it runs any
  /// more, if it has died. The kernel may let go of the mark while a thread on another processor
  /// runs on for microseconds. Takes some 10 ms.
  static void wait_for_stopped_threads() noexcept;

 private:
  pthread_mutex_t mutex_;
  std::atomic<std::uint32_t> holder_word_;  ///< what the mutex's first word is while it is held
};

}  // namespace lockstep::inline internal

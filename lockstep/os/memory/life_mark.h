#pragma once

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace lockstep::inline internal {

/// A mark in shared memory by which other processes notice within microseconds that this process
/// has died, in any way and with any amount of memory. It is a robust mutex, which the kernel
/// releases before it frees the process's memory. (Sockets and pidfds report only after that, tens
/// of milliseconds later per gigabyte.)
/// The kernel ties a mutex to a thread, so one thread holds all marks of a process. The first mark
/// starts it; it ends with the process.
/// Threads: hold() and let_go() from any thread of one process; is_held() from any thread of any
/// process.
/// Lifetime: zeroed shared memory is a mark that was never held; it must stay mapped while held.
class LifeMark {
 public:
  /// Holds the mark.
  /// Errors: SystemError.
  void hold();
  /// Releases a mark that this process holds.
  void let_go() noexcept;
  /// Whether the holder still holds it; false before hold().
  bool is_held() noexcept;

  /// Call it after a mark is no longer held. Returns when no thread of the process that held it
  /// runs any more, if it died: a thread on another processor may run for microseconds after the
  /// kernel released the mark. Takes about 10 ms.
  static void wait_for_stopped_threads() noexcept;

 private:
  pthread_mutex_t mutex_;
  std::atomic<std::uint32_t> holder_word_;  ///< value of the mutex's first word while it is held
};

}  // namespace lockstep::inline internal

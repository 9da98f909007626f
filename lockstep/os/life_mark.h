#pragma once

#include <atomic>
#include <cstdint>

#include <pthread.h>

namespace lockstep {

/// A mark in shared memory by which other processes learn within microseconds that this one has
/// died, however it died and whatever memory it held: a robust mutex, which the kernel looks at
/// before it takes a process apart. (Its sockets and its pidfd tell only afterwards, tens of
/// milliseconds later for each gigabyte.)
/// Threads: hold() and let_go() from one thread, which must live as long as the mark is held: the
/// kernel ties the mark to the thread. is_held() from any thread of any process.
/// Lifetime: zeroed shared memory is a mark that was never held; it must stay mapped while held.
class LifeMark {
 public:
  /// Errors: SystemError.
  void hold();
  /// False when another thread than the holder calls: the mark stays held and must stay mapped.
  bool let_go() noexcept;
  /// Whether the holder holds it still; false before hold() too.
  bool is_held() noexcept;

 private:
  pthread_mutex_t mutex_;
  std::atomic<std::uint32_t> holder_word_;  ///< what the mutex's first word is while it is held
};

}  // namespace lockstep

#pragma once

#include <condition_variable>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::python {

class TorchWork;

/// Moves asynchronous calls on while the program computes, and completes their futures: Lockstep's
/// backends have no thread of their own. The first such call starts it. Calls that the program
/// waits for within a millisecond never meet it, nor do those of a backward pass.
/// Threads: any. Lifetime: of the process; stop() before the interpreter ends.
class ProgressThread {
 public:
  /// Of this process: a forked one begins with none.
  static ProgressThread& instance();
  /// Whether this is that thread.
  static bool is_current();

  /// Keeps the work until it has ended. Returns false after stop(): the work is not kept then.
  bool add(c10::intrusive_ptr<TorchWork> work);
  /// Ends the thread; works that are under way are moved on no more, and their futures fail. Waits
  /// a second at most: a thread whose callback blocks is left behind.
  void stop();

 private:
  void start_if_needed() LOCKSTEP_REQUIRES(mutex_);
  void serve();

  internal::Mutex mutex_;
  std::condition_variable changed_;
  std::vector<c10::intrusive_ptr<TorchWork>> added_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_running_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  /// Sleeps until it is notified.
  bool is_idle_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stops_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::python

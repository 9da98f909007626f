#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/base/internal/mutex.h"

namespace lockstep::inline internal {

/// One thread per replica of a module, each with its own number of intra-op threads.
/// Threads: run() from one at a time.
/// Lifetime: the destructor ends the threads, which must be idle.
class ReplicaThreads {
 public:
  /// One thread per entry, which is its number of intra-op threads.
  explicit ReplicaThreads(std::vector<int> intra_op_threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Runs task(i) on thread i for every i below `count`. Returns when all are done, with what each
  /// threw, or null.
  std::vector<std::exception_ptr> run(int count, const std::function<void(int)>& task);

 private:
  void work(int index, int intra_op_threads);

  Mutex mutex_;
  std::condition_variable changed_;
  std::int64_t round_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int busy_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  const std::function<void(int)>* task_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::exception_ptr> failures_ LOCKSTEP_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace lockstep::inline internal

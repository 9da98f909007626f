#include "lockstep/ddp/internal/data_parallel_threads.h"

#include <ATen/Parallel.h>

namespace lockstep::inline internal {

ReplicaThreads::ReplicaThreads(std::vector<int> intra_op_threads) {
  const int own_threads = at::get_num_threads();
  busy_ = static_cast<int>(intra_op_threads.size());
  for (std::size_t i = 0; i < intra_op_threads.size(); ++i) {
    threads_.emplace_back(&ReplicaThreads::work, this, static_cast<int>(i), intra_op_threads[i]);
  }
  {
    MutexLock lock(mutex_);
    while (busy_ > 0) changed_.wait(lock.native());
  }
  // Each has set its own number and, beside it, that of threads to come, which is put back here.
  at::set_num_threads(own_threads);
}

ReplicaThreads::~ReplicaThreads() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::exception_ptr> ReplicaThreads::run(int count,
                                                    const std::function<void(int)>& task) {
  MutexLock lock(mutex_);
  failures_.assign(static_cast<std::size_t>(count), nullptr);
  task_ = &task;
  count_ = count;
  busy_ = count;
  ++round_;
  changed_.notify_all();
  while (busy_ > 0) changed_.wait(lock.native());
  return std::move(failures_);
}

void ReplicaThreads::work(int index, int intra_op_threads) {
  // The first operator of a thread takes the number for threads to come, unless it is asked before.
  at::get_num_threads();
  at::set_num_threads(intra_op_threads);
  MutexLock lock(mutex_);
  std::int64_t seen = 0;
  if (--busy_ == 0) changed_.notify_all();
  for (;;) {
    while (!stopped_ && round_ == seen) changed_.wait(lock.native());
    if (stopped_) return;
    seen = round_;
    if (index >= count_) continue;
    const std::function<void(int)>& task = *task_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      task(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[static_cast<std::size_t>(index)] = failure;
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace lockstep::inline internal

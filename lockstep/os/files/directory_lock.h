#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Reserves a directory for one job, by a lock on its file `.lock`, which names the owner. The
/// kernel releases the lock when the process ends in any way. Locks of one process do not exclude
/// each other. If a process of the same job (`lockstep run`, on one machine or several) has the
/// lock, take() waits for its end up to `own_job_wait`, then continues without the lock; check()
/// takes it as soon as it is free.
///
/// It works between machines if the file system supports locks (NFS, Lustre with -o flock). Else
/// the job that came last has the directory, and check() fails in the earlier one.
/// Threads: any.
/// Lifetime: the directory is reserved while any of the process's locks on it exists.
class DirectoryLock {
 public:
  /// How long take() waits for another process of its own job: that ends, or is unreachable.
  static constexpr std::chrono::milliseconds kOwnJobWait = std::chrono::seconds(10);

  /// Creates the directory if needed.
  /// Errors: UsageError with the process that has it; SystemError.
  static std::shared_ptr<DirectoryLock> take(const std::filesystem::path& directory,
                                             std::chrono::milliseconds own_job_wait = kOwnJobWait);

  /// Retries a lock that take() continued without.
  /// Errors: UsageError if another job has taken the directory since.
  void check();

 private:
  DirectoryLock(std::filesystem::path file, UniqueFd fd);
  void lock(std::chrono::milliseconds own_job_wait);
  /// False: another process has it. A file system without locks: one warning, and true.
  bool try_lock();
  void write_owner();

  std::filesystem::path file_;
  UniqueFd fd_;
  Mutex mutex_;
  /// The lock is held, or the file system has no locks.
  bool is_settled_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::inline internal

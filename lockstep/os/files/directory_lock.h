#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Keeps a directory for one job: a lock on its file `.lock`, which the kernel releases when the
/// process ends, however it ends. The file says who has it. Locks of one process do not exclude
/// each other. The processes of one job (`lockstep run`, on one machine or several) follow each
/// other: who comes later waits a while for the one before to end, then goes on without the lock,
/// and check() takes it as soon as it is free.
///
/// Between machines it holds where the file system's locks do (NFS, Lustre with -o flock).
/// Elsewhere the job that came last has the directory, and check() fails in the one before.
/// Threads: any.
/// Lifetime: the directory is kept as long as any of the process's locks on it lives.
class DirectoryLock {
 public:
  /// How long one waits for another process of its own job: that ends, or cannot be reached.
  static constexpr std::chrono::milliseconds kOwnJobWait = std::chrono::seconds(10);

  /// Makes the directory if need be.
  /// Errors: UsageError naming the process that has it; SystemError.
  static std::shared_ptr<DirectoryLock> take(const std::filesystem::path& directory,
                                             std::chrono::milliseconds own_job_wait = kOwnJobWait);

  /// Tries again for a lock that take() went on without.
  /// Errors: UsageError where another job has taken the directory since.
  void check();

 private:
  DirectoryLock(std::filesystem::path file, UniqueFd fd);
  void lock(std::chrono::milliseconds own_job_wait);
  /// False: another process has it. Errors: a file system without locks is one warning, and true.
  bool try_lock();
  void write_owner();

  std::filesystem::path file_;
  UniqueFd fd_;
  Mutex mutex_;
  /// It is held, or the file system has no locks.
  bool is_settled_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::inline internal

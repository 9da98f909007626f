#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/os/unique_fd.h"

namespace lockstep {

/// Keeps a directory for one job: a lock on its file `.lock`, which the kernel releases when the
/// process ends, however it ends. The file says who has it. Locks of one process, and of the
/// processes that one `lockstep run` has started, do not exclude each other.
///
/// Between machines it holds where the file system's locks do (NFS, Lustre with -o flock).
/// Elsewhere the job that came last has the directory, and check() fails in the one before.
/// Threads: any.
/// Lifetime: the directory is kept as long as any of the process's locks on it lives.
class DirectoryLock {
 public:
  /// Makes the directory if need be.
  /// Errors: UsageError naming the process that has it; SystemError.
  static std::shared_ptr<DirectoryLock> take(const std::filesystem::path& directory);

  /// Errors: UsageError where another job has taken the directory since.
  void check() const;

 private:
  DirectoryLock(std::filesystem::path file, UniqueFd fd);
  void lock();

  std::filesystem::path file_;
  UniqueFd fd_;
};

}  // namespace lockstep

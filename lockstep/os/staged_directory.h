#pragma once

#include <filesystem>

#include "lockstep/os/unique_fd.h"

namespace lockstep {

/// A directory that is filled under a hidden name beside its path, "<parent>/.<name>.lockstep-…",
/// and takes the path when it is whole and on disk: whatever happens, the path holds nothing, the
/// old or the new. It is locked (flock) while its maker lives. One whose maker was killed is not,
/// and the next StagedDirectory for the same path removes it.
/// Lifetime: destroyed before commit(), it is removed with all it holds.
/// Threads: one. Errors: SystemError naming the path.
class StagedDirectory {
 public:
  enum class Existing { kKeep, kReplace };

  /// Makes the parents too, where they are missing.
  explicit StagedDirectory(const std::filesystem::path& target);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  const std::filesystem::path& path() const { return path_; }

  /// False, with nothing changed, when the target exists and is not empty, and is to be kept. One
  /// that is replaced is exchanged for the new one in one call, and then removed. On a file system
  /// that cannot do that it is away for an instant; settle() brings it back after a kill.
  bool commit(Existing existing);

  /// Clears up what killed makers left of this path, as the constructor does: for a program that
  /// looks at the path before it makes a new one. Returns the path as the file system has it.
  static std::filesystem::path settle(const std::filesystem::path& target);

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;  ///< Empty once there is none.
  UniqueFd lock_;
};

}  // namespace lockstep

#pragma once

#include <filesystem>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {

/// Creates a directory atomically: it is written beside its path, then renamed.
/// Lifetime: the destructor removes it unless commit() has moved it; a killed process leaves
/// ".<name>.partial-…" behind.
/// Errors: SystemError.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path target);

  /// The directory to write files into.
  const std::filesystem::path& path() const { return path_; }
  /// Moves the directory to its path. `replaces`: replace what is there; false: that is an error.
  void commit(bool replaces);

 private:
  std::filesystem::path target_;
  TemporaryDirectory temporary_;
  std::filesystem::path path_;
};

}  // namespace lockstep::inline internal

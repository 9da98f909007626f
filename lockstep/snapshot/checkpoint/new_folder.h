#pragma once

#include <filesystem>

#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {

/// A folder that is at its path whole or not at all: it is written beside it, then renamed.
/// Lifetime: what commit() has not moved is removed by the destructor; a process that is killed
/// leaves ".<name>.partial-…" behind.
/// Errors: SystemError.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path target);

  /// Where to write its files.
  const std::filesystem::path& path() const { return path_; }
  /// `replaces`: takes the place of what is there; otherwise that is an error.
  void commit(bool replaces);

 private:
  std::filesystem::path target_;
  TemporaryDirectory temporary_;
  std::filesystem::path path_;
};

}  // namespace lockstep::inline internal

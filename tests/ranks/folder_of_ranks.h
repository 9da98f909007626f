#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::testing {

/// A temporary folder of all ranks of a group. To make it and to let go of it is collective: it is
/// removed when no rank uses it any more.
class FolderOfRanks {
 public:
  FolderOfRanks(ProcessGroup group, const std::string& prefix) : group_(std::move(group)) {
    if (group_.rank() == 0) made_.emplace(std::filesystem::temp_directory_path(), prefix);
    path_ = broadcast_text(group_, made_ ? made_->path().string() : "", 0);
  }
  ~FolderOfRanks() { group_.barrier(); }
  FolderOfRanks(const FolderOfRanks&) = delete;
  FolderOfRanks& operator=(const FolderOfRanks&) = delete;

  const std::string& path() const { return path_; }

 private:
  const ProcessGroup group_;
  std::optional<TemporaryDirectory> made_;
  std::string path_;
};

}  // namespace lockstep::testing

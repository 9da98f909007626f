#include "lockstep/snapshot/checkpoint/checkpoint_files.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

ReadableFile CheckpointFiles::add(const std::filesystem::path& path) {
  ReadableFile file(path);
  const std::lock_guard lock(open_->mutex);
  files_.push_back({.path = path, .identity = file.identity()});
  keep_open(files_.size() - 1, file);
  return file;
}

ReadableFile CheckpointFiles::open(std::size_t index) const {
  const std::lock_guard lock(open_->mutex);
  const auto found =
      std::ranges::find(open_->files, index, [](const auto& file) { return file.first; });
  if (found != open_->files.end()) {
    std::rotate(found, found + 1, open_->files.end());
    return open_->files.back().second;
  }
  ReadableFile file(files_[index].path);
  if (file.identity() != files_[index].identity) {
    throw CorruptFile(concat("read ", file.path().string(),
                             ": it was replaced or changed while the checkpoint was read; open the "
                             "checkpoint again"));
  }
  keep_open(index, file);
  return file;
}

void CheckpointFiles::keep_open(std::size_t index, const ReadableFile& file) const {
  if (open_->files.size() == kMostOpen) open_->files.erase(open_->files.begin());
  open_->files.emplace_back(index, file);
}

}  // namespace lockstep::inline internal

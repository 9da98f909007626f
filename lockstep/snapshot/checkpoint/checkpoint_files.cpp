#include "lockstep/snapshot/checkpoint/checkpoint_files.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

ReadableFile CheckpointFiles::add(const std::filesystem::path& path) {
  ReadableFile file(path);
  files_.push_back({.path = path, .identity = file.identity()});
  OpenFiles& open = *open_;
  const MutexLock lock(open.mutex);
  keep_open(open, files_.size() - 1, file);
  return file;
}

ReadableFile CheckpointFiles::open(std::size_t index) const {
  OpenFiles& open = *open_;
  const MutexLock lock(open.mutex);
  const auto found =
      std::ranges::find(open.files, index, [](const auto& file) { return file.first; });
  if (found != open.files.end()) {
    std::rotate(found, found + 1, open.files.end());
    return open.files.back().second;
  }
  ReadableFile file(files_[index].path);
  if (file.identity() != files_[index].identity) {
    throw CorruptFile(concat("read ", file.path().string(),
                             ": it was replaced or changed while the checkpoint was read; open the "
                             "checkpoint again"));
  }
  keep_open(open, index, file);
  return file;
}

void CheckpointFiles::keep_open(OpenFiles& open, std::size_t index, const ReadableFile& file) {
  if (open.files.size() == kMostOpen) open.files.erase(open.files.begin());
  open.files.emplace_back(index, file);
}

}  // namespace lockstep::inline internal

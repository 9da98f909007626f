#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/internal/mutex.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {

/// The files of a checkpoint, which may be more than a process can open: opened when they are used,
/// and the last kMostOpen of them kept open.
/// Threads: any number may open files, when all are added.
/// Errors: as ReadableFile; CorruptFile if the file at a path is not the one that was added.
class CheckpointFiles {
 public:
  static constexpr std::size_t kMostOpen = 64;

  /// Opens the file, which gets the index size().
  ReadableFile add(const std::filesystem::path& path);
  ReadableFile open(std::size_t index) const;

  std::size_t size() const { return files_.size(); }

 private:
  struct File {
    std::filesystem::path path;
    FileIdentity identity;
  };
  struct OpenFiles {
    Mutex mutex;
    /// By index, the last used one last.
    std::vector<std::pair<std::size_t, ReadableFile>> files LOCKSTEP_GUARDED_BY(mutex);
  };

  static void keep_open(OpenFiles& open, std::size_t index, const ReadableFile& file)
      LOCKSTEP_REQUIRES(open.mutex);

  std::vector<File> files_;
  std::unique_ptr<OpenFiles> open_ = std::make_unique<OpenFiles>();
};

}  // namespace lockstep::inline internal

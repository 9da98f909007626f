#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Replaces a file atomically: its path has either the old or the whole new content. Bytes go to a
/// temporary file in the same directory; commit() flushes it to disk and renames it. The writer
/// holds a lock (flock) on the temporary. If the writer is killed, the next AtomicFile in that
/// directory removes it.
/// Threads: one at a time; AtomicFiles of any processes may share a directory.
/// Lifetime: without commit() the destructor removes the temporary and leaves the path unchanged.
/// Errors: SystemError with the path, and for a write the number of bytes and the offset: disk
/// full, quota, no permission. After an error only destroy it.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);

  /// Returns when the file is on disk under its path.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_path_;  ///< Empty: there is none.
  UniqueFd fd_;
  std::uint64_t written_bytes_ = 0;
};

/// Returns when the directory's entries are on disk, if its file system supports that.
/// Errors: SystemError.
void sync_directory(const std::filesystem::path& directory);

}  // namespace lockstep::inline internal

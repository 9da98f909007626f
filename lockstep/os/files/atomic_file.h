#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Writes a file so that its path holds the old content or the new, whole, whatever happens: the
/// bytes go to a temporary file in the same directory, which commit() flushes to disk and renames.
/// The temporary is locked (flock) while its writer lives. One whose writer was killed is not, and
/// the next AtomicFile in that directory removes it.
/// Threads: one at a time; any number of AtomicFiles, of any processes, may share a directory.
/// Lifetime: destroyed before commit(), it removes the temporary and leaves the path as it was.
/// Errors: SystemError naming the path, and for a write the bytes and the offset: disk full, quota,
/// no permission. After one, nothing but destruction works.
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
  std::filesystem::path temporary_path_;  ///< Empty once there is none.
  UniqueFd fd_;
  std::uint64_t written_bytes_ = 0;
};

/// Returns when the names in the directory are on disk, where its file system offers that.
/// Errors: SystemError.
void sync_directory(const std::filesystem::path& directory);

}  // namespace lockstep::inline internal

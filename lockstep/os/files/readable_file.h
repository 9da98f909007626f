#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Whether two files are one and unchanged, as far as the file system says.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t changed_s = 0;
  std::int64_t changed_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// A regular file, open for reading at any offset. It stays the same file when its path is replaced
/// or removed.
/// Threads: any may read.
/// Errors: SystemError with the path; UsageError if the path is no regular file.
class ReadableFile {
 public:
  explicit ReadableFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// Size when it was opened.
  std::uint64_t size_bytes() const { return size_bytes_; }
  /// The whole file's, when it was opened.
  const FileIdentity& identity() const { return identity_; }
  /// A range of this file as a ReadableFile of its own. The range must be within the file.
  ReadableFile part(std::uint64_t offset, std::uint64_t bytes) const;

  /// Reads `bytes` bytes at `offset` into `target`.
  /// Errors: CorruptFile if the file ends first.
  void read(std::uint64_t offset, void* target, std::size_t bytes) const;
  /// The whole file, size_bytes() long.
  /// Errors: as read().
  std::string text() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;
  std::uint64_t begin_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
  FileIdentity identity_;
};

}  // namespace lockstep::inline internal

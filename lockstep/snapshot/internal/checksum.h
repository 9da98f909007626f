#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"

/// The checksum of a file, stored in the comment at the end of a zip archive: "lockstep-xxh3:" and
/// the XXH3-128 in 32 lower-case hexadecimal digits. It covers every byte before the comment's
/// text, its length included. So any changed bit is detected, and other programs read the archive
/// as usual.
namespace lockstep::inline internal {

struct ChecksumHash;

/// Identifies a file: size, and XXH3-128 of all bytes in 32 lower-case hexadecimal digits.
struct FileDigest {
  std::uint64_t size_bytes = 0;
  std::string xxh3;

  bool operator==(const FileDigest&) const = default;
};

/// Reads the whole file.
/// Errors: SystemError.
FileDigest digest_of(const ReadableFile& file);

/// XXH3-128, as `xxh128sum` prints it.
std::string xxh3_digits(std::string_view bytes);

/// Writes a zip archive, and adds the checksum.
/// Errors: as AtomicFile.
class ChecksumWriter {
 public:
  explicit ChecksumWriter(AtomicFile& file);
  ~ChecksumWriter();

  void write(const void* data, std::size_t bytes);

  /// Adds the checksum; call it once, after the archive's last byte. Returns the digest of the
  /// file.
  FileDigest finish();

 private:
  void put(const void* data, std::size_t bytes);

  AtomicFile& file_;
  std::unique_ptr<ChecksumHash> hash_;
  std::uint64_t size_bytes_ = 0;
  /// The last two bytes so far; at the end they are the length of the archive's comment.
  std::string held_back_;
};

/// A file of a format without a checksum; returns its digest.
/// Errors: as AtomicFile.
class HashedFile {
 public:
  explicit HashedFile(std::filesystem::path path);
  ~HashedFile();

  void write(const void* data, std::size_t bytes);
  std::uint64_t size_bytes() const { return size_bytes_; }
  FileDigest commit();

 private:
  AtomicFile file_;
  std::unique_ptr<ChecksumHash> hash_;
  std::uint64_t size_bytes_ = 0;
};

/// Reads the whole file and compares. False: a zip archive without Lockstep's checksum, written by
/// another program.
/// Errors: CorruptFile if any bit differs or the end is missing; SystemError.
bool verify_checksum(const ReadableFile& file);

/// XXH3-64: detects damage, not intent. `seed`: the hash of the bytes before.
std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0);

}  // namespace lockstep::inline internal

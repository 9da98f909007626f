#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"

/// The checksum of a whole file, kept where zip archives allow it: in the comment at their very
/// end, "lockstep-xxh3:" and the XXH3-128 in 32 lower-case hexadecimal digits. It covers every byte
/// before the comment, the comment's length included; so no bit of the file can change unnoticed,
/// and programs that know nothing of it read the archive as any other.
namespace lockstep::inline internal {

struct ChecksumHash;

/// By which a file is known again: that of all its bytes, in 32 lower-case hexadecimal digits.
struct FileDigest {
  std::uint64_t size_bytes = 0;
  std::string xxh3;

  bool operator==(const FileDigest&) const = default;
};

/// Reads the whole file. Errors: SystemError.
FileDigest digest_of(const ReadableFile& file);

/// XXH3-128, as `xxh128sum` prints it.
std::string xxh3_digits(std::string_view bytes);

/// Takes a zip archive as its writer emits it and adds the checksum.
/// Errors: as AtomicFile.
class ChecksumWriter {
 public:
  explicit ChecksumWriter(AtomicFile& file);
  ~ChecksumWriter();

  void write(const void* data, std::size_t bytes);

  /// To be called after the archive's last byte, once. Of the whole file, as digest_of.
  FileDigest finish();

 private:
  void put(const void* data, std::size_t bytes);

  AtomicFile& file_;
  std::unique_ptr<ChecksumHash> hash_;
  std::uint64_t size_bytes_ = 0;
  /// The last two bytes so far: at the end they are the length of the archive's comment.
  std::string held_back_;
};

/// A file of a format that has no room for a checksum: what is known of it once it is written.
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

/// Reads the whole file and compares. Returns false when it is a zip archive without our checksum:
/// one that another program wrote. Errors: CorruptFile when any bit differs from what was written
/// or the end is missing; SystemError.
bool verify_checksum(const ReadableFile& file);

/// XXH3-64: tells damage, not intent. `seed`: of what came before.
std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0);

}  // namespace lockstep::inline internal

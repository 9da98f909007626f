#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/os/atomic_file.h"
#include "lockstep/os/readable_file.h"

/// The checksum of a whole file, kept where zip archives allow it: in the comment at their very
/// end, "lockstep-xxh3:" and the XXH3-128 in 32 lower-case hexadecimal digits. It covers every byte
/// before the comment, the comment's length included; so no bit of the file can change unnoticed,
/// and programs that know nothing of it read the archive as any other.
namespace lockstep {

struct ChecksumHash;

/// Takes a zip archive as its writer emits it and adds the checksum.
/// Errors: as AtomicFile.
class ChecksumWriter {
 public:
  explicit ChecksumWriter(AtomicFile& file);
  ~ChecksumWriter();

  void write(const void* data, std::size_t bytes);

  /// To be called after the archive's last byte, once.
  void finish();

 private:
  void put(const void* data, std::size_t bytes);

  AtomicFile& file_;
  std::unique_ptr<ChecksumHash> hash_;
  /// The last two bytes so far: at the end they are the length of the archive's comment.
  std::string held_back_;
};

/// Reads the whole file and compares. Returns false when it is a zip archive without our checksum:
/// one that another program wrote. Errors: CorruptFile when any bit differs from what was written
/// or the end is missing; SystemError.
bool verify_checksum(const ReadableFile& file);

}  // namespace lockstep

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {

/// Where the bytes of a record lie in the file.
struct ZipRecord {
  std::string name;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

struct ZipReaderOptions {
  /// Not needed where a checksum over the whole file was verified, and it takes most of the time.
  bool check_crc = true;
};

/// The records of a zip archive as PyTorch writes them: stored, neither compressed nor encrypted,
/// all below one directory. Trusts nothing in the file.
/// Threads: any may read. Lifetime: `file` must outlive it.
/// Errors: CorruptFile when the file is no such archive, when two records share bytes, and when a
/// record does not have the CRC that the archive states; SystemError.
class ZipReader {
 public:
  explicit ZipReader(const ReadableFile& file, const ZipReaderOptions& options = {});

  /// Names are those below the archive's one directory: "data.pkl", "data/0". Errors: CorruptFile
  /// when there is none.
  const ZipRecord& record(const std::string& name) const;
  const std::map<std::string, ZipRecord>& records() const { return records_; }
  bool has_record(const std::string& name) const { return records_.count(name) != 0; }

  /// Fills `target` with the record's size_bytes.
  void read(const ZipRecord& record, void* target) const;

 private:
  struct Directory {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t entries = 0;
  };
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  /// Advances `at` to the next entry.
  ZipRecord read_entry(const std::vector<unsigned char>& directory, std::size_t& at) const;
  std::uint64_t data_offset(std::uint64_t header_offset, const std::string& name) const;
  void check_overlaps() const;
  [[noreturn]] void corrupt(const std::string& reason) const;

  const ReadableFile& file_;
  const ZipReaderOptions options_;
  std::map<std::string, ZipRecord> records_;
};

}  // namespace lockstep::inline internal

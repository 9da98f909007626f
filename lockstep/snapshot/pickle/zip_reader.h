#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {

/// A record and the range of its bytes in the file.
struct ZipRecord {
  std::string name;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  /// 0: none (torch.serialization.set_crc32_options(False)).
  std::uint32_t crc32 = 0;
};

/// Options of ZipReader.
struct ZipReaderOptions {
  /// Check each record's CRC, which takes most of the time; not needed after a checksum of the
  /// whole file was verified.
  bool check_crc = true;
};

/// Reads the records of a zip archive as PyTorch writes it: stored, neither compressed nor
/// encrypted, all in one directory. Trusts nothing in the file.
/// Threads: any number may read.
/// Lifetime: `file` must outlive it.
/// Errors: CorruptFile for a file that is no such archive, for records that share bytes, and for a
/// record that fails its CRC; NotACheckpoint for TorchScript; SystemError.
class ZipReader {
 public:
  explicit ZipReader(const ReadableFile& file, const ZipReaderOptions& options = {});

  /// The record of this name in the archive's directory: "data.pkl", "data/0".
  /// Errors: CorruptFile if there is none.
  const ZipRecord& record(const std::string& name) const;
  const std::map<std::string, ZipRecord>& records() const { return records_; }
  bool has_record(const std::string& name) const { return records_.count(name) != 0; }

  /// Reads the record's size_bytes into `target`.
  void read(const ZipRecord& record, void* target) const;
  /// Whether the record's bytes have its CRC, if any; reads them through a buffer.
  bool is_intact(const ZipRecord& record) const;
  /// Whether any record has a CRC.
  bool has_crcs() const;

 private:
  struct Directory {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t entries = 0;
  };
  Directory find_directory() const;
  void read_directory(const Directory& directory);
  /// Reads an entry, and advances `at` to the next.
  ZipRecord read_entry(const std::vector<unsigned char>& directory, std::size_t& at) const;
  std::uint64_t data_offset(std::uint64_t header_offset, const std::string& name) const;
  void check_overlaps() const;
  [[noreturn]] void corrupt(const std::string& reason) const;

  const ReadableFile& file_;
  const ZipReaderOptions options_;
  std::map<std::string, ZipRecord> records_;
};

}  // namespace lockstep::inline internal

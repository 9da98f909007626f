#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/ivalue.h>

#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {

/// As save(), and by what the file is known again.
FileDigest save_file(const std::filesystem::path& path, const c10::IValue& value,
                     const SaveFileOptions& options = {});

/// As load(), of a file whose checksum has been found right.
c10::IValue load_verified(const ReadableFile& file);

/// A file's values without the tensors' numbers, which are not read; nor is anything verified.
struct Outline {
  c10::IValue tree;
  /// Of each storage, by its address, the zip archive's record: "data/0".
  std::map<const c10::StorageImpl*, ZipRecord> records;
};

/// Reads little of a large file. Errors: as load(), for what it reads.
Outline load_outline(const ReadableFile& file);

}  // namespace lockstep::inline internal

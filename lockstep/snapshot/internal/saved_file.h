#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/ivalue.h>

#include "lockstep/os/files/readable_file.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/gathered_state.h"
#include "lockstep/snapshot/pickle/zip_reader.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {

/// As save(); returns the digest of the file. Absent tensors in the value are gathered one after
/// the other while the file is written, by `gather`.
FileDigest save_file(const std::filesystem::path& path, const c10::IValue& value,
                     const SaveOptions& options = {}, const GatherWhole& gather = {});

/// As load(), for a file whose checksum has been verified.
c10::IValue load_verified(const ReadableFile& file);

/// A file's values without the data of tensors, which is neither read nor verified.
struct Outline {
  c10::IValue tree;
  /// The record of each storage, by its address: "data/0".
  std::map<const c10::StorageImpl*, ZipRecord> records;
  /// Size of the pickle that describes them.
  std::uint64_t pickle_bytes = 0;
};

/// The tensor for which an absent tensor of an outline of this file stands.
at::Tensor read_absent(const ReadableFile& file, const ZipRecord& record, const at::Tensor& absent);

/// Reads the outline of a file, a small part of a large file.
/// Errors: as load(), for what it reads.
Outline load_outline(const ReadableFile& file);

}  // namespace lockstep::inline internal

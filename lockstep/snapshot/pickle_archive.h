#pragma once

#include <filesystem>

#include <ATen/core/ivalue.h>

/// Files of torch.save's format: a zip archive with a pickle and one record a storage.
namespace lockstep {

/// Writes dicts, lists, tuples, tensors, numbers, strings and None so that Python's
/// torch.load(path), with weights_only and mmap or not, reads them; with a checksum over the file
/// (checksum.h); atomically. Lists and dicts must be GenericList and GenericDict of AnyType.
/// Tensors are written as CPU tensors, storages whole.
/// Errors: UsageError naming a tensor that files cannot hold; SystemError (disk full, no
/// permission). The path then holds what it held before.
void write_pickle_archive(const std::filesystem::path& path, const c10::IValue& value);

struct ReadArchiveOptions {
  /// Refuse files without our checksum. Otherwise those of other programs are read too, and what
  /// protects them is the CRC of each record.
  bool checksum_required = true;
};

/// Reads what write_pickle_archive or torch.save wrote. Nothing in the file is trusted or executed.
/// Errors: CorruptFile when any bit is wrong; UsageError for files that hold something else than
/// write_pickle_archive could write, and for those of other programs where the checksum is
/// required; SystemError.
c10::IValue read_pickle_archive(const std::filesystem::path& path,
                                const ReadArchiveOptions& options = {});

}  // namespace lockstep

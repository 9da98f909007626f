#pragma once

#include <filesystem>
#include <string>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/tensor_dict.h"

/// torch.save and torch.load, for plain values: a zip archive with a pickle and one record a
/// storage.
namespace lockstep {

/// Writes dicts, lists, tuples, tensors, numbers, strings and None so that Python's
/// torch.load(path), with weights_only and mmap or not, reads them; with a checksum over the file
/// (checksum.h); atomically. Lists and dicts must be GenericList and GenericDict of AnyType, as
/// make_list() and make_dict() (values.h) make them. Tensors are written as CPU tensors, storages
/// whole.
/// Errors: UsageError naming a tensor that files cannot hold; SystemError (disk full, no
/// permission). The path then holds what it held before.
void save(const std::filesystem::path& path, const c10::IValue& value);

struct SaveFileOptions {
  /// A text that stands beside the values, for read_note(): torch.load passes it over.
  std::string note = {};
};

/// The same for named tensors: save("checkpoint.pt", state_dict(*model)).
void save(const std::filesystem::path& path, const TensorDict& tensors,
          const SaveFileOptions& options = {});

/// The note of a file, of which nothing else is read or verified; empty where it has none.
/// Errors: CorruptFile where it is no such archive; SystemError.
std::string read_note(const std::filesystem::path& path);

struct LoadOptions {
  /// Refuse files without our checksum. Otherwise those of other programs are read too, and what
  /// protects them is the CRC of each record.
  bool checksum_required = false;
};

/// Reads what save() or torch.save wrote; tensors on the CPU. Nothing in the file is trusted or
/// executed.
/// Errors: CorruptFile when any bit is wrong; UsageError for files that hold something else than
/// save() could write, and for those of other programs where the checksum is required; SystemError.
c10::IValue load(const std::filesystem::path& path, const LoadOptions& options = {});

}  // namespace lockstep

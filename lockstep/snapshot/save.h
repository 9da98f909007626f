#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/state_dict.h"

/// torch.save and torch.load, for plain values: a zip archive with a pickle and one record a
/// storage.
namespace lockstep {

/// Writes dicts, lists, tuples, tensors, numbers, strings and None so that Python's
/// torch.load(path), with weights_only and mmap or not, reads them; with a checksum over the file;
/// atomically. Lists and dicts must be GenericList and GenericDict of AnyType, as make_list() and
/// make_dict() make them. Tensors are written as CPU tensors, storages whole.
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

// Plain values to and from the trees that archives hold. `source`, in messages, is what was being
// done with which file: "load run/snapshot.pt".

c10::impl::GenericDict make_dict();
c10::impl::GenericList make_list();

c10::IValue tensor_dict_value(const TensorDict& tensors);
c10::IValue tensor_list_value(const std::vector<at::Tensor>& tensors);

/// The entry of a dict, or None when there is none. `dict` must be a dict.
c10::IValue find_value(const c10::IValue& dict, const std::string& key);

// Errors: UsageError saying that it is not what was expected.
c10::IValue entry(const c10::IValue& dict, const std::string& key, const std::string& source);
std::int64_t integer_entry(const c10::IValue& dict, const std::string& key,
                           const std::string& source);
TensorDict tensor_dict(const c10::IValue& value, const std::string& source);
std::vector<at::Tensor> tensor_list(const c10::IValue& value, const std::string& source);

}  // namespace lockstep

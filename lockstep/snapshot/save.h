#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/state_dict.h"

/// torch.save and torch.load for plain values: a zip archive with a pickle and one record per
/// storage.
namespace lockstep {

/// Writes dicts, lists, tuples, tensors, numbers, strings and None to a file for Python's
/// torch.load(path), also with weights_only or mmap. Adds a checksum over the file; writes
/// atomically. Lists and dicts must be GenericList and GenericDict of AnyType, as from make_list()
/// and make_dict(). Tensors are written as CPU tensors, with their whole storages.
/// Errors: UsageError that names a tensor that files cannot hold; SystemError (disk full, no
/// permission). The path then holds what it held before.
void save(const std::filesystem::path& path, const c10::IValue& value);

/// Options of save().
struct SaveOptions {
  /// A text beside the values, for read_note(); torch.load ignores it.
  std::string note = {};
};

/// The same for named tensors: save("checkpoint.pt", state_dict(*model)).
void save(const std::filesystem::path& path, const TensorDict& tensors,
          const SaveOptions& options = {});

/// The note of a file; empty without one. Reads and verifies nothing else.
/// Errors: CorruptFile if the file is no such archive; SystemError.
std::string read_note(const std::filesystem::path& path);

/// Options of load().
struct LoadOptions {
  /// Refuse files without Lockstep's checksum. False: also read files of other programs, which only
  /// the CRC of each record protects.
  bool checksum_required = false;
};

/// Reads a file of save() or torch.save; tensors are on the CPU. Trusts and executes nothing in the
/// file.
/// Errors: CorruptFile if any bit is wrong; UsageError for content that save() could not have
/// written, and for files of other programs if checksum_required; SystemError.
c10::IValue load(const std::filesystem::path& path, const LoadOptions& options = {});

// Plain values to and from the trees that archives hold.

/// An empty dict of AnyType, for save().
c10::impl::GenericDict make_dict();
/// An empty list of AnyType, for save().
c10::impl::GenericList make_list();

/// A dict of named tensors, for save().
c10::IValue tensor_dict_value(const TensorDict& tensors);
/// A list of tensors, for save().
c10::IValue tensor_list_value(const std::vector<at::Tensor>& tensors);

/// The entry of a dict; None without one. `dict` must be a dict.
c10::IValue find_value(const c10::IValue& dict, const std::string& key);

/// The entry of a dict.
/// `source`: operation and file for error messages, as "load run/snapshot.pt"; here and below.
/// Errors: UsageError if there is none, or `dict` is no dict; the functions below likewise.
c10::IValue entry(const c10::IValue& dict, const std::string& key, const std::string& source);
/// The entry of a dict, an integer.
std::int64_t integer_entry(const c10::IValue& dict, const std::string& key,
                           const std::string& source);
/// The named tensors of a dict.
TensorDict tensor_dict(const c10::IValue& value, const std::string& source);
/// The tensors of a list.
std::vector<at::Tensor> tensor_list(const c10::IValue& value, const std::string& source);

}  // namespace lockstep

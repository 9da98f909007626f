#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/pickle/pickle_nodes.h"

namespace lockstep::inline internal {

/// Returns the bytes of storage `key` as a uint8 tensor of shape [bytes].
using StorageReader = std::function<at::Tensor(const std::string& key, std::uint64_t bytes)>;

/// Builds the value of a pickle (protocol 2, as torch.save and Lockstep write it): None, bool, int,
/// double, string, tuple, list, dict (also OrderedDict; keys are strings or integers, in their
/// order), dense CPU tensors. Refuses everything else: no code runs, no class is looked up. Tensors
/// that shared a storage share it again.
///
/// Beside the storages, n bytes take at most 16 MiB + 256 · n: half for values, each counted as
/// often as it is referred to (PickleBudget), half for what is built meanwhile.
///
/// `file`: name of the file, for error messages.
/// Errors: CorruptFile for bytes that are no such pickle or exceed the limits; NotACheckpoint
/// that names the class or function that is refused; UsageError for a dtype; what `read_storage`
/// throws.
c10::IValue unpickle(std::string_view pickle, const StorageReader& read_storage,
                     const std::string& file);

/// Python names, as "module.name", that a pickle may hold.
struct PickleNames {
  /// Whether it is a class whose objects become PickleObject.
  bool (*is_class)(std::string_view full);
  /// Whether it is a value by its name alone, which becomes PickleGlobal.
  bool (*is_value)(std::string_view full);
  /// Largest protocol, from 2 on.
  std::uint8_t most_protocol = 2;
};

/// The nodes of a pickle.
struct PickleTree {
  PickleNodes nodes;
  NodeId root = 0;
};

/// Builds the nodes of a pickle with objects of these classes and without tensors, for a reader
/// that knows the classes. Nodes may share and contain each other.
/// Errors: as unpickle().
PickleTree unpickle_objects(std::string_view pickle, const PickleNames& names,
                            const std::string& file);

}  // namespace lockstep::inline internal

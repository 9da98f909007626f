#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/pickle/pickle_nodes.h"

namespace lockstep::inline internal {

/// Gives the bytes of storage `key` as a one-dimensional uint8 tensor of `bytes` elements.
using StorageReader = std::function<at::Tensor(const std::string& key, std::uint64_t bytes)>;

/// Turns a pickle (protocol 2, as torch.save and Lockstep write it) into None, bool, int, double,
/// string, tuple, list, dict (OrderedDict too; keys are strings or integers, in their order) and
/// dense CPU tensors. Nothing else is understood: no code runs, no class is looked up. Tensors that
/// shared a storage share it again. `file` is what messages call the file.
/// Beside the storages, n bytes take at most 16 MiB + 256 · n: values count as often as they are
/// mentioned (PickleBudget), and what is built meanwhile takes the other half.
/// Errors: CorruptFile for bytes that are no such pickle or exceed sensible limits; UsageError
/// naming the class, function or dtype that is refused; whatever `read_storage` throws.
c10::IValue unpickle(std::string_view pickle, const StorageReader& read_storage,
                     const std::string& file);

/// Which names of Python's a pickle may hold, as "module.name".
struct PickleNames {
  /// Of these objects are made: PickleObject.
  bool (*is_class)(std::string_view full);
  /// These are values, by their name alone: PickleGlobal.
  bool (*is_value)(std::string_view full);
  /// From 2 on.
  std::uint8_t most_protocol = 2;
};

struct PickleTree {
  PickleNodes nodes;
  NodeId root = 0;
};

/// The nodes of a pickle that holds objects of these classes, for a reader that knows them; no
/// tensors. Nodes may share and contain each other. Errors: as unpickle().
PickleTree unpickle_objects(std::string_view pickle, const PickleNames& names,
                            const std::string& file);

}  // namespace lockstep::inline internal

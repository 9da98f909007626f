#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

/// Nodes that an unpickler builds; they refer to each other by index. A hostile pickle may make
/// nodes share or contain each other. An arena owns them all, so nothing leaks; the value tree is
/// built at the end, within limits.
namespace lockstep::inline internal {

/// Index of a node.
using NodeId = std::size_t;

/// Python's None.
struct PickleNone {};
/// The marker on the pickle machine's stack.
struct PickleMark {};
/// A name such as "collections OrderedDict" or "torch FloatStorage"; only compared, never looked
/// up.
struct PickleGlobal {
  std::string name;
};
/// Python's tuple.
struct PickleTuple {
  std::vector<NodeId> items;
};
/// Python's list.
struct PickleList {
  std::vector<NodeId> items;
};
/// Python's dict or OrderedDict.
struct PickleDict {
  std::vector<std::pair<NodeId, NodeId>> items;
  bool ordered = false;
};
/// An object of a class that PickleNames::is_class allows, as the pickle describes it; no class is
/// looked up.
struct PickleObject {
  NodeId name = 0;       ///< a PickleGlobal
  NodeId arguments = 0;  ///< a PickleTuple
  /// The argument of Python's __setstate__, or its __dict__.
  std::optional<NodeId> state = std::nullopt;
};
/// A storage of tensors.
struct PickleStorage {
  at::Tensor bytes;
  /// Undefined: its tensors have their own dtypes.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

/// A node.
using PickleNode =
    std::variant<PickleNone, PickleMark, bool, std::int64_t, double, std::string, PickleGlobal,
                 PickleTuple, PickleList, PickleDict, PickleObject, PickleStorage, at::Tensor>;
/// An arena; references stay valid while it grows.
using PickleNodes = std::deque<PickleNode>;

/// Limit on the memory that the values of a pickle take beside tensor data. Each reference to a
/// value counts, since a pickle of 1 MB can refer to one string a hundred thousand times.
class PickleBudget {
 public:
  /// Bytes per byte of the pickle; real pickles need fewer than 100.
  static constexpr std::uint64_t kBytesAByte = 128;
  /// Bytes for a pickle of any size.
  static constexpr std::uint64_t kAnyPickleBytes = 16u << 20;

  explicit PickleBudget(std::uint64_t pickle_bytes)
      : left_(kAnyPickleBytes + kBytesAByte * pickle_bytes) {}

  /// Takes bytes from the budget. False: not enough were left, and none are now.
  bool spend(std::uint64_t bytes) {
    const bool is_enough = bytes <= left_;
    left_ = is_enough ? left_ - bytes : 0;
    return is_enough;
  }

 private:
  std::uint64_t left_;
};

/// Builds the value of node `root`. Returns nullopt and sets `problem` for a value that is nested
/// too deep or contains itself, that unfolds to too many values or bytes, that has a key other than
/// a string or integer, or that only the unpickler can use.
std::optional<c10::IValue> to_value(const PickleNodes& nodes, NodeId root, PickleBudget& budget,
                                    std::string& problem);

/// Largest number of dimensions; PyTorch's tensors have no more.
inline constexpr std::size_t kMaxDimensions = 64;

/// The tensor with these sizes, strides and offset, in elements, over the bytes of a storage.
/// Undefined if an element would lie outside of the storage, or a number is invalid.
at::Tensor tensor_over(const at::Tensor& bytes, c10::ScalarType dtype, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides);

}  // namespace lockstep::inline internal

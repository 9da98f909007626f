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

/// What an unpickler builds: nodes that name each other by index. A hostile pickle may make them
/// share and even contain each other; an arena owns them all, so nothing leaks, and the tree is
/// made at the end within limits.
namespace lockstep::inline internal {

using NodeId = std::size_t;

struct PickleNone {};
struct PickleMark {};
/// "collections OrderedDict", "torch FloatStorage", …: never looked up, only compared.
struct PickleGlobal {
  std::string name;
};
struct PickleTuple {
  std::vector<NodeId> items;
};
struct PickleList {
  std::vector<NodeId> items;
};
struct PickleDict {
  std::vector<std::pair<NodeId, NodeId>> items;
  bool ordered = false;
};
/// Of a class of PickleNames::is_class, as it is described: no class is looked up.
struct PickleObject {
  NodeId name = 0;       ///< a PickleGlobal
  NodeId arguments = 0;  ///< a PickleTuple
  /// What Python's __setstate__ or __dict__ would get.
  std::optional<NodeId> state = std::nullopt;
};
struct PickleStorage {
  at::Tensor bytes;
  /// Undefined: the tensors over it name theirs.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

using PickleNode =
    std::variant<PickleNone, PickleMark, bool, std::int64_t, double, std::string, PickleGlobal,
                 PickleTuple, PickleList, PickleDict, PickleObject, PickleStorage, at::Tensor>;
/// References stay valid while it grows.
using PickleNodes = std::deque<PickleNode>;

/// The memory that the values of a pickle may take beside the data of their tensors: each mention
/// of a value counts, as a pickle of a megabyte can mention one string a hundred thousand times.
class PickleBudget {
 public:
  /// Real ones need fewer than 100.
  static constexpr std::uint64_t kBytesAByte = 128;
  static constexpr std::uint64_t kAnyPickleBytes = 16u << 20;

  explicit PickleBudget(std::uint64_t pickle_bytes)
      : left_(kAnyPickleBytes + kBytesAByte * pickle_bytes) {}

  /// False, and nothing is left, when there is not so much.
  bool spend(std::uint64_t bytes) {
    const bool is_enough = bytes <= left_;
    left_ = is_enough ? left_ - bytes : 0;
    return is_enough;
  }

 private:
  std::uint64_t left_;
};

/// The value below `root`. Returns nothing, with the reason in `problem`, when it is nested too
/// deep (or contains itself), unfolds to too many values or bytes, has a key that is neither string
/// nor integer, or holds what only the unpickler understands.
std::optional<c10::IValue> to_value(const PickleNodes& nodes, NodeId root, PickleBudget& budget,
                                    std::string& problem);

/// No tensor of PyTorch's has more.
inline constexpr std::size_t kMaxDimensions = 64;

/// The tensor of these sizes and strides, counted in elements, over the bytes of a storage.
/// Undefined when any element of it would lie outside of them, or a number makes no sense.
at::Tensor tensor_over(const at::Tensor& bytes, c10::ScalarType dtype, std::int64_t offset,
                       const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& strides);

}  // namespace lockstep::inline internal

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

struct TensorDifference {
  enum class Kind { kMissing, kMismatched, kUnexpected };
  Kind kind;
  std::string name;
  std::string text;  ///< "'a' was saved as float[2, 3], and is double[2, 3] here"
};

/// Where `saved` has other names, shapes or dtypes than `own`, whose tensors it would be copied
/// into: in the order of `own`, then what only `saved` has. The order of `saved` does not matter.
std::vector<TensorDifference> tensor_differences(const TensorDict& own, const TensorDict& saved);

/// A name that two of the tensors have, which could not be told apart in a snapshot; or nothing.
std::optional<std::string> repeated_name(const TensorDict& tensors);

}  // namespace lockstep::inline internal

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// A difference between saved and own tensors.
struct TensorDifference {
  enum class Kind { kMissing, kMismatched, kUnexpected };
  Kind kind;
  std::string name;
  std::string text;  ///< "'a' was saved as float[2, 3], and is double[2, 3] here"
};

/// Differences in names, shapes and dtypes between `saved` and `own`, into which it would be
/// copied: in the order of `own`, then tensors only in `saved`. The order of `saved` is ignored.
std::vector<TensorDifference> tensor_differences(const TensorDict& own, const TensorDict& saved);

/// A name that occurs twice, which a snapshot could not distinguish; nullopt without one.
std::optional<std::string> repeated_name(const TensorDict& tensors);

}  // namespace lockstep::inline internal

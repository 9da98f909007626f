#pragma once

#include <optional>
#include <string>

#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// The first difference in words where `saved` has other names, shapes or dtypes than `own`, whose
/// tensors it would be copied into: "'a' was saved as float [2, 3], and is double [2, 3] here". The
/// order does not matter. Pure.
std::optional<std::string> tensor_difference(const TensorDict& own, const TensorDict& saved);

}  // namespace lockstep::inline internal

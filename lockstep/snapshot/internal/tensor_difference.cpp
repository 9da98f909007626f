#include "lockstep/snapshot/internal/tensor_difference.h"

#include <map>
#include <set>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

std::string kind_of(const at::Tensor& tensor) {
  return concat(tensor.dtype().name(), tensor.sizes());
}

}  // namespace

std::vector<TensorDifference> tensor_differences(const TensorDict& own, const TensorDict& saved) {
  using Kind = TensorDifference::Kind;
  std::map<std::string, const at::Tensor*> given;
  for (const auto& [name, tensor] : saved) given.emplace(name, &tensor);
  std::vector<TensorDifference> found;
  for (const auto& [name, tensor] : own) {
    const auto match = given.find(name);
    if (match == given.end()) {
      found.push_back({Kind::kMissing, name, concat("'", name, "' was not saved")});
      continue;
    }
    const at::Tensor& value = *match->second;
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type()) {
      found.push_back({Kind::kMismatched, name,
                       concat("'", name, "' was saved as ", kind_of(value), ", and is ",
                              kind_of(tensor), " here")});
    }
    given.erase(match);
  }
  for (const auto& [name, tensor] : saved) {
    if (!given.contains(name)) continue;
    found.push_back({Kind::kUnexpected, name, concat("'", name, "' was saved, and is not here")});
  }
  return found;
}

std::optional<std::string> repeated_name(const TensorDict& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) return name;
  }
  return std::nullopt;
}

}  // namespace lockstep::inline internal

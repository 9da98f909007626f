#include "lockstep/snapshot/state_dict.h"

#include <algorithm>
#include <map>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/values.h"

namespace lockstep {
namespace {

/// How many differences a message spells out.
constexpr std::size_t kNamedDifferences = 3;

void add_tensors(const torch::nn::Module& module, const std::string& prefix, TensorDict& result) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    result.emplace_back(prefix + parameter.key(), parameter.value().detach());
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    result.emplace_back(prefix + buffer.key(), buffer.value().detach());
  }
  for (const auto& child : module.named_children()) {
    add_tensors(*child.value(), prefix + child.key() + ".", result);
  }
}

std::string describe(const at::Tensor& tensor) {
  return concat(tensor.dtype().name(), tensor.sizes());
}

/// One line a difference, in the module's order, then what only `values` has.
std::vector<std::string> differences(const TensorDict& wanted, const TensorDict& values) {
  std::map<std::string, const at::Tensor*> given;
  for (const auto& [name, tensor] : values) given.emplace(name, &tensor);
  std::vector<std::string> found;
  for (const auto& [name, tensor] : wanted) {
    const auto match = given.find(name);
    if (match == given.end()) {
      found.push_back(concat("'", name, "' is missing"));
      continue;
    }
    const at::Tensor& value = *match->second;
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type()) {
      found.push_back(
          concat("'", name, "' is ", describe(value), ", the model's is ", describe(tensor)));
    }
    given.erase(match);
  }
  for (const auto& [name, tensor] : values) {
    if (given.count(name) != 0) found.push_back(concat("'", name, "' is not in the model"));
  }
  return found;
}

}  // namespace

TensorDict state_dict(const torch::nn::Module& module) {
  TensorDict result;
  add_tensors(module, "", result);
  return result;
}

void check_state_dict(const torch::nn::Module& module, const TensorDict& values,
                      const std::string& source) {
  const std::vector<std::string> found = differences(state_dict(module), values);
  if (found.empty()) return;
  std::string list = found[0];
  for (std::size_t i = 1; i < std::min(found.size(), kNamedDifferences); ++i)
    list += "; " + found[i];
  if (found.size() > kNamedDifferences) {
    list += concat("; and ", found.size() - kNamedDifferences, " more");
  }
  throw UsageError(concat("load ", source, ": it does not fit the model in ", found.size(),
                          found.size() == 1 ? " place: " : " places: ", list,
                          "; load it into the model that it was saved from"));
}

void load_state_dict(torch::nn::Module& module, const TensorDict& values,
                     const std::string& source) {
  check_state_dict(module, values, source);
  std::map<std::string, const at::Tensor*> given;
  for (const auto& [name, tensor] : values) given.emplace(name, &tensor);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state_dict(module)) tensor.copy_(*given.at(name));
}

TensorDict read_state_dict(const std::filesystem::path& path) {
  const std::string file = path.string();
  c10::IValue value = load(path);
  for (const char* key : {"model", "state_dict"}) {
    if (!value.isGenericDict()) break;
    const c10::IValue nested = find_value(value, key);
    if (nested.isGenericDict()) value = nested;
  }
  return tensor_dict(value, concat("read ", file));
}

}  // namespace lockstep

#include "lockstep/snapshot/state_dict.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/checkpoint.h"
#include "lockstep/snapshot/checkpoint/weights_path.h"
#include "lockstep/snapshot/internal/tensor_difference.h"
#include "lockstep/snapshot/internal/tensor_memory.h"
#include "lockstep/snapshot/safetensors.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

/// How many differences a message spells out.
constexpr std::size_t kNamedDifferences = 3;
/// What Python's DistributedDataParallel and DataParallel put before the names of the module that
/// they wrap.
const std::string kWrapperPrefix = "module.";

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

bool have_prefix(const TensorDict& values, const std::string& prefix) {
  return !values.empty() && std::ranges::all_of(values, [&](const auto& value) {
    return value.first.starts_with(prefix);
  });
}

/// The values by the module's names.
TensorDict named_for(const TensorDict& wanted, const TensorDict& values) {
  return have_prefix(wanted, kWrapperPrefix) ? values : without_prefix(values, kWrapperPrefix);
}

void refuse_differences(const std::vector<TensorDifference>& found, const std::string& source) {
  if (found.empty()) return;
  std::string list = found[0].text;
  for (std::size_t i = 1; i < std::min(found.size(), kNamedDifferences); ++i)
    list += "; " + found[i].text;
  if (found.size() > kNamedDifferences) {
    list += concat("; and ", found.size() - kNamedDifferences, " more");
  }
  throw UsageError(concat("load ", source, ": it does not fit the model in ", found.size(),
                          found.size() == 1 ? " place: " : " places: ", list,
                          "; load it into the model that it was saved from, or what fits of it "
                          "with strict off"));
}

/// What does not fit. Of tied tensors, which are one in memory, a value for one is enough:
/// safetensors have only that.
std::vector<TensorDifference> differences(const TensorDict& wanted, const TensorDict& named) {
  std::vector<TensorDifference> found = tensor_differences(wanted, named);
  std::set<std::string> missing;
  for (const auto& [kind, name, text] : found) {
    if (kind == TensorDifference::Kind::kMissing) missing.insert(name);
  }
  if (missing.empty()) return found;
  std::set<TensorMemory> given;
  std::set<std::string> tied;
  for (const auto& [name, tensor] : wanted) {
    if (const auto memory = memory_of(tensor); memory && !missing.contains(name)) {
      given.insert(*memory);
    }
  }
  for (const auto& [name, tensor] : wanted) {
    const auto memory = memory_of(tensor);
    if (memory && missing.contains(name) && given.contains(*memory)) tied.insert(name);
  }
  std::erase_if(found, [&](const TensorDifference& one) {
    return one.kind == TensorDifference::Kind::kMissing && tied.contains(one.name);
  });
  return found;
}

}  // namespace

TensorDict state_dict(const torch::nn::Module& module) {
  TensorDict result;
  add_tensors(module, "", result);
  return result;
}

TensorDict without_prefix(TensorDict values, const std::string& prefix) {
  if (!have_prefix(values, prefix)) return values;
  for (auto& [name, tensor] : values) name.erase(0, prefix.size());
  return values;
}

void check_state_dict(const torch::nn::Module& module, const TensorDict& values,
                      const std::string& source) {
  const TensorDict wanted = state_dict(module);
  refuse_differences(differences(wanted, named_for(wanted, values)), source);
}

IncompatibleKeys load_state_dict(torch::nn::Module& module, const TensorDict& values,
                                 const LoadStateDictOptions& options) {
  const TensorDict wanted = state_dict(module);
  const TensorDict named = named_for(wanted, values);
  const std::vector<TensorDifference> found = differences(wanted, named);
  if (options.strict) refuse_differences(found, options.source);
  std::map<std::string, const at::Tensor*> given;
  for (const auto& [name, tensor] : named) given.emplace(name, &tensor);
  IncompatibleKeys keys;
  using Kind = TensorDifference::Kind;
  for (const auto& [kind, name, text] : found) {
    auto& names = kind == Kind::kMissing      ? keys.missing
                  : kind == Kind::kMismatched ? keys.mismatched
                                              : keys.unexpected;
    names.push_back(name);
    given.erase(name);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : wanted) {
    if (const auto value = given.find(name); value != given.end()) tensor.copy_(*value->second);
  }
  return keys;
}

TensorDict read_state_dict(const std::filesystem::path& path) {
  if (is_checkpoint_folder(path)) {
    const CheckpointReader reader(path);
    TensorDict tensors;
    for (const CheckpointTensor& tensor : reader.tensors()) {
      tensors.emplace_back(tensor.name, reader.read(tensor.name));
    }
    return tensors;
  }
  if (is_safetensors(path)) return read_safetensors(path).tensors;
  const std::string file = path.string();
  return tensor_dict(weights_value(load(path)), concat("read ", file));
}

}  // namespace lockstep

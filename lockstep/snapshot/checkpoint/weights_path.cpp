#include "lockstep/snapshot/checkpoint/weights_path.h"

#include <algorithm>
#include <optional>
#include <set>

namespace lockstep::inline internal {
namespace {

/// `dict`, or the dict of the weights in it.
KeyPath weights_in(const std::vector<DistributedTensor>& tensors, const KeyPath& dict) {
  KeyPath found = dict;
  for (const char* key : {"model", "state_dict"}) {
    KeyPath nested = found;
    nested.emplace_back(key);
    if (std::ranges::any_of(tensors,
                            [&](const auto& tensor) { return is_below(tensor.path, nested); })) {
      found = std::move(nested);
    }
  }
  return found;
}

/// Whether a dict at the top has the state of an optimizer, as "optim" or "optimizers".
bool has_optimizer(const std::vector<DistributedTensor>& tensors, const std::string& top) {
  return std::ranges::any_of(tensors, [&](const auto& tensor) {
    return is_below(tensor.path, KeyPath{top}) && tensor.path[1].starts_with("optim");
  });
}

}  // namespace

bool is_below(std::span<const std::string> path, std::span<const std::string> dict) {
  return path.size() > dict.size() && std::ranges::equal(path.first(dict.size()), dict);
}

KeyPath weights_path(const std::vector<DistributedTensor>& tensors) {
  if (const KeyPath found = weights_in(tensors, {}); !found.empty()) return found;
  std::set<std::string> tops;
  for (const DistributedTensor& tensor : tensors) {
    if (!tensor.path.empty()) tops.insert(tensor.path[0]);
  }
  std::optional<KeyPath> only;
  for (const std::string& top : tops) {
    const KeyPath found = weights_in(tensors, {top});
    if (found.size() == 1 || (tops.size() > 1 && !has_optimizer(tensors, top))) continue;
    if (only) return {};
    only = found;
  }
  return only.value_or(KeyPath());
}

std::string name_below(const KeyPath& path, const KeyPath& dict) {
  std::string name = path[dict.size()];
  for (std::size_t i = dict.size() + 1; i < path.size(); ++i) name += "." + path[i];
  return name;
}

}  // namespace lockstep::inline internal

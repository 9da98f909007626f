#include "lockstep/snapshot/checkpoint/weights_path.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

/// Keys of the weights' dict: the second in the first, or one of them.
constexpr std::array<std::string_view, 2> kWeightsKeys = {"model", "state_dict"};
/// Length of the longest path that weights_path() tells apart: one of a training state, these two,
/// and one below.
constexpr std::size_t kLongestPath = 2 + kWeightsKeys.size();

/// `dict`, or the dict of the weights in it.
KeyPath weights_in(std::span<const KeyPath> tensors, const KeyPath& dict) {
  KeyPath found = dict;
  for (const std::string_view key : kWeightsKeys) {
    KeyPath nested = found;
    nested.emplace_back(key);
    if (std::ranges::any_of(tensors, [&](const auto& path) { return is_below(path, nested); })) {
      found = std::move(nested);
    }
  }
  return found;
}

/// Whether a dict at the top has the state of an optimizer, as "optim" or "optimizers".
bool has_optimizer(std::span<const KeyPath> paths_of_top) {
  return std::ranges::any_of(paths_of_top, [](const auto& path) {
    return path.size() > 1 && path[1].starts_with("optim");
  });
}

bool has_tensors(const c10::IValue& value) {
  bool has = false;
  visit_tensors(value, [&](const std::string&, const at::Tensor&) { has = true; });
  return has;
}

/// Adds the paths of what has tensors at and below `value`, which is at `path`.
void add_paths(const c10::IValue& value, KeyPath& path, std::vector<KeyPath>& paths) {
  if (!value.isGenericDict() || path.size() == kLongestPath) {
    if (has_tensors(value)) paths.push_back(path);
    return;
  }
  path.emplace_back();
  for (const auto& item : value.toGenericDict()) {
    path.back() = key_text(item.key());
    add_paths(item.value(), path, paths);
  }
  path.pop_back();
}

/// An empty dict that has a name of the weights'; nullopt: none.
std::optional<c10::IValue> empty_weights_in(const c10::IValue& dict) {
  for (const std::string_view key : kWeightsKeys) {
    const c10::IValue nested = find_value(dict, std::string(key));
    if (nested.isGenericDict() && nested.toGenericDict().empty()) return nested;
  }
  return std::nullopt;
}

/// Of a model without tensors.
std::optional<c10::IValue> empty_weights(const c10::IValue& tree, std::span<const KeyPath> paths) {
  if (!tree.isGenericDict()) return std::nullopt;
  if (auto found = empty_weights_in(tree)) return found;
  const auto tops = tree.toGenericDict();
  std::optional<c10::IValue> only;
  for (const auto& top : tops) {
    if (!top.value().isGenericDict()) continue;
    const auto found = empty_weights_in(top.value());
    if (!found) continue;
    std::vector<KeyPath> below;
    std::ranges::copy_if(paths, std::back_inserter(below), [&](const KeyPath& path) {
      return !path.empty() && path[0] == key_text(top.key());
    });
    if (tops.size() > 1 && !has_optimizer(below)) continue;
    if (only) return std::nullopt;
    only = found;
  }
  return only;
}

c10::IValue value_at(c10::IValue value, std::span<const std::string> path) {
  for (const std::string& key : path) {
    for (const auto& item : value.toGenericDict()) {
      if (!item.value().isGenericDict() || key_text(item.key()) != key) continue;
      value = item.value();
      break;
    }
  }
  return value;
}

}  // namespace

bool is_below(std::span<const std::string> path, std::span<const std::string> dict) {
  return path.size() > dict.size() && std::ranges::equal(path.first(dict.size()), dict);
}

KeyPath weights_path(std::span<const KeyPath> tensors) {
  if (KeyPath found = weights_in(tensors, {}); !found.empty()) return found;
  std::map<std::string, std::vector<KeyPath>> tops;
  for (const KeyPath& path : tensors) {
    if (!path.empty()) tops[path[0]].push_back(path);
  }
  std::optional<KeyPath> only;
  for (const auto& [top, paths] : tops) {
    const KeyPath found = weights_in(paths, {top});
    if (found.size() == 1 || (tops.size() > 1 && !has_optimizer(paths))) continue;
    if (only) return {};
    only = found;
  }
  return only.value_or(KeyPath());
}

c10::IValue weights_value(const c10::IValue& tree) {
  std::vector<KeyPath> paths;
  KeyPath top;
  add_paths(tree, top, paths);
  const KeyPath path = weights_path(paths);
  if (!path.empty()) return value_at(tree, path);
  return empty_weights(tree, paths).value_or(tree);
}

std::string name_below(const KeyPath& path, const KeyPath& dict) {
  std::string name = path[dict.size()];
  for (std::size_t i = dict.size() + 1; i < path.size(); ++i) name += "." + path[i];
  return name;
}

}  // namespace lockstep::inline internal

#include "lockstep/snapshot/internal/weights_value.h"

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/snapshot/internal/value_tree.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

bool has_tensors(const c10::IValue& value) {
  bool has = false;
  visit_tensors(value, [&](const std::string&, const at::Tensor&) { has = true; });
  return has;
}

/// The dict of the weights in this dict; nullopt if it has none.
std::optional<c10::IValue> weights_in(const c10::IValue& dict) {
  std::optional<c10::IValue> found;
  for (const char* key : {"model", "state_dict"}) {
    const c10::IValue nested = find_value(found.value_or(dict), key);
    if (!nested.isGenericDict()) continue;
    // One of a model without tensors, but not its options.
    if (nested.toGenericDict().empty() || has_tensors(nested)) found = nested;
  }
  return found;
}

bool has_optimizer(const c10::IValue& dict) {
  for (const auto& item : dict.toGenericDict()) {
    const bool is_named = item.key().isString() && item.key().toStringRef().starts_with("optim");
    if (is_named && has_tensors(item.value())) return true;
  }
  return false;
}

}  // namespace

c10::IValue weights_value(const c10::IValue& tree) {
  if (!tree.isGenericDict()) return tree;
  if (const auto found = weights_in(tree)) return *found;
  std::size_t tops = 0;
  for (const auto& top : tree.toGenericDict()) tops += has_tensors(top.value()) ? 1 : 0;
  std::optional<c10::IValue> only;
  for (const auto& top : tree.toGenericDict()) {
    if (!top.value().isGenericDict()) continue;
    const auto found = weights_in(top.value());
    if (!found || (tops > 1 && !has_optimizer(top.value()))) continue;
    if (only) return tree;
    only = found;
  }
  return only.value_or(tree);
}

}  // namespace lockstep::inline internal

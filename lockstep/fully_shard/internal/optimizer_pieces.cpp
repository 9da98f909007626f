#include "lockstep/fully_shard/internal/optimizer_pieces.h"

#include <torch/optim/optimizer.h>

#include "lockstep/snapshot/internal/optimizer_description.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {

std::set<std::string> numbers_of(const torch::optim::Optimizer& optimizer) {
  std::set<std::string> names{"step"};
  const OptimizerDescription* const description = find_description(optimizer);
  if (description != nullptr) {
    names.insert(description->numbers.begin(), description->numbers.end());
  }
  return names;
}

c10::IValue map_states(const c10::IValue& optimizer, const MapField& map) {
  c10::impl::GenericDict states = make_dict();
  for (const auto& item : find_value(optimizer, kOptimizerStates).toGenericDict()) {
    c10::impl::GenericDict state = make_dict();
    for (const auto& field : item.value().toGenericDict()) {
      const bool is_tensor = field.value().isTensor() && field.key().isString();
      if (!is_tensor) {
        state.insert_or_assign(field.key(), field.value());
        continue;
      }
      state.insert_or_assign(field.key(), map(item.key().toInt(), field.key().toStringRef(),
                                              field.value().toTensor()));
    }
    states.insert_or_assign(item.key(), state);
  }
  c10::impl::GenericDict result = make_dict();
  for (const auto& item : optimizer.toGenericDict()) {
    result.insert_or_assign(item.key(), item.value());
  }
  result.insert_or_assign(kOptimizerStates, states);
  return result;
}

}  // namespace lockstep::inline internal

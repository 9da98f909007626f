#include "lockstep/fully_shard/internal/sharded_training_state.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/fully_shard/internal/optimizer_pieces.h"
#include "lockstep/fully_shard/internal/sharded_units.h"
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {
namespace {

// By the index that a state dict gives a parameter its place in the order of the groups; a dict of
// other groups has none, and is refused when it is checked.
std::map<std::int64_t, std::size_t> places_of_indices(const c10::IValue& optimizer) {
  std::map<std::int64_t, std::size_t> places;
  if (!optimizer.isGenericDict()) return places;
  const c10::IValue groups = find_value(optimizer, kOptimizerGroups);
  if (!groups.isList()) return places;
  std::size_t place = 0;
  for (const c10::IValue& group : groups.toListRef()) {
    const c10::IValue indices = group.isGenericDict() ? find_value(group, "params") : c10::IValue();
    if (!indices.isList()) return {};
    for (const c10::IValue& index : indices.toListRef()) {
      if (index.isInt()) places[index.toInt()] = place;
      ++place;
    }
  }
  return places;
}

bool has_states(const c10::IValue& optimizer) {
  if (!optimizer.isGenericDict()) return false;
  const c10::IValue states = find_value(optimizer, kOptimizerStates);
  if (!states.isGenericDict()) return false;
  for (const auto& item : states.toGenericDict()) {
    if (!item.key().isInt() || !item.value().isGenericDict()) return false;
  }
  return true;
}

}  // namespace

ShardedTrainingState::ShardedTrainingState(torch::nn::Module& module, const ShardedUnits& units,
                                           torch::optim::Optimizer& optimizer)
    : module_(module), members_(units), optimizer_(optimizer) {
  for (const ShardedUnits::Unit& unit : units.units()) {
    for (const auto& flat : unit.flats) {
      const at::ScalarType dtype = flat->members().front().piece.scalar_type();
      Message& message =
          parameters_.emplace_back(Message{flat.get(), "", dtype, pieces_of(*flat), {}});
      for (const FlatParameter::Member& member : flat->members()) {
        message.absent.push_back(absent_tensor(member.sizes, member.strides, message.dtype));
      }
    }
  }
}

TensorDict ShardedTrainingState::model() const {
  TensorDict result;
  for_each_tensor(module_, [&](const std::string& name, const at::Tensor& tensor) {
    const Place* const place = members_.place_of(tensor);
    if (place == nullptr) {
      result.emplace_back(name, tensor.detach());
      return;
    }
    const auto message = std::ranges::find(parameters_, place->flat, &Message::flat);
    result.emplace_back(name, message->absent[place->index]);
  });
  return result;
}

std::vector<const ShardedMembers::Place*> ShardedTrainingState::places_of_optimizer() const {
  std::vector<const Place*> places;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      places.push_back(members_.place_of_piece(parameter));
    }
  }
  return places;
}

at::Tensor ShardedTrainingState::add_to_message(const Place& place, const std::string& field,
                                                const at::Tensor& piece) {
  const auto is_it = [&](const Message& message) {
    return message.flat == place.flat && message.field == field &&
           message.dtype == piece.scalar_type();
  };
  auto message = std::ranges::find_if(states_, is_it);
  if (message == states_.end()) {
    const std::size_t count = place.flat->members().size();
    states_.push_back({place.flat, field, piece.scalar_type(), std::vector<at::Tensor>(count),
                       std::vector<at::Tensor>(count)});
    message = std::prev(states_.end());
  }
  const FlatParameter::Member& member = place.member();
  at::Tensor& absent = message->absent[place.index];
  message->pieces[place.index] = piece;
  // An optimizer may have a shared parameter twice.
  if (!absent.defined()) {
    absent = absent_tensor(member.sizes, member.strides, piece.scalar_type());
  }
  return absent;
}

c10::IValue ShardedTrainingState::optimizer() {
  states_.clear();
  const std::vector<const Place*> places = places_of_optimizer();
  const std::set<std::string> numbers = numbers_of(optimizer_);
  return map_states(optimizer_state_dict(optimizer_),
                    [&](std::int64_t index, const std::string& field, const at::Tensor& tensor) {
                      const Place* const place = places.at(static_cast<std::size_t>(index));
                      if (place == nullptr || numbers.contains(field)) return tensor;
                      return add_to_message(*place, field, tensor);
                    });
}

void ShardedTrainingState::gather(const TakeWhole& take) const {
  for (const auto* const messages : {&parameters_, &states_}) {
    for (const Message& message : *messages) {
      const at::Tensor whole = message.flat->gather_pieces(message.pieces);
      for (std::size_t i = 0; i < message.absent.size(); ++i) {
        if (!message.absent[i].defined()) continue;
        take(message.absent[i], [&] { return message.flat->value_in(whole, i).cpu(); });
      }
    }
  }
}

void ShardedTrainingState::read(const Snapshot& snapshot,
                                const std::function<at::Tensor(const at::Tensor& absent)>& read,
                                const std::string& source) {
  const c10::NoGradGuard no_grad;
  const auto differences = state_differences(module_, members_, snapshot.model);
  if (!differences.empty()) {
    throw UsageError(concat("load ", source,
                            ": it does not fit the model: ", some_differences(differences),
                            "; load it into the model that it was saved from"));
  }
  source_ = source;
  read_tensors_.clear();
  const std::map<std::string, at::Tensor> given(snapshot.model.begin(), snapshot.model.end());
  for_each_tensor(module_, [&](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor whole = read(given.at(name));
    const Place* const place = members_.place_of(tensor);
    if (place == nullptr) {
      read_tensors_.emplace_back(tensor, whole);
    } else {
      read_tensors_.emplace_back(place->piece(), place->flat->piece_of(place->index, whole));
    }
  });

  read_optimizer_ = snapshot.optimizer;
  if (has_states(snapshot.optimizer)) {
    const std::vector<const Place*> places = places_of_optimizer();
    const std::set<std::string> numbers = numbers_of(optimizer_);
    const auto places_of_index = places_of_indices(snapshot.optimizer);
    read_optimizer_ = map_states(snapshot.optimizer, [&](std::int64_t index,
                                                         const std::string& field,
                                                         const at::Tensor& tensor) {
      const auto found = places_of_index.find(index);
      const bool is_known = found != places_of_index.end() && found->second < places.size();
      const Place* const place = is_known ? places[found->second] : nullptr;
      if (place == nullptr || numbers.contains(field)) return read(tensor);
      if (tensor.sizes() != at::IntArrayRef(place->member().sizes)) {
        throw UsageError(concat("load ", source, ": the optimizer's '", field, "' of '",
                                place->member().name, "' has shape ", tensor.sizes(),
                                " and the parameter ", at::IntArrayRef(place->member().sizes),
                                "; give the optimizer its parameters in the order of the save"));
      }
      return place->flat->piece_of(place->index, read(tensor));
    });
  }
  check_optimizer_state_dict(optimizer_, read_optimizer_, source);
}

void ShardedTrainingState::take_over() {
  const c10::NoGradGuard no_grad;
  for (const auto& [target, value] : std::exchange(read_tensors_, {})) target.copy_(value);
  adopt_optimizer_state_dict(optimizer_, std::exchange(read_optimizer_, {}), source_);
}

}  // namespace lockstep::inline internal

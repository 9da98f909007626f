#include "lockstep/fully_shard/internal/full_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/fully_shard/internal/sharded_units.h"

namespace lockstep::inline internal {
namespace {

/// How many differences a message spells out.
constexpr std::size_t kNamedDifferences = 3;

void visit_tensors_of(const torch::nn::Module& module, const std::string& prefix,
                      const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    visit(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    visit(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    visit_tensors_of(*child.value(), prefix + child.key() + ".", visit);
  }
}

/// The values, and those of parameters that have one by another of their names alone: safetensors
/// have tied weights once.
TensorDict with_tied(const torch::nn::Module& module, TensorDict values) {
  const std::map<std::string, at::Tensor> given(values.begin(), values.end());
  std::map<const void*, at::Tensor> by_parameter;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    const auto value = given.find(name);
    if (value != given.end()) by_parameter.emplace(tensor.unsafeGetTensorImpl(), value->second);
  });
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    const auto value = by_parameter.find(tensor.unsafeGetTensorImpl());
    if (value != by_parameter.end() && !given.contains(name)) {
      values.emplace_back(name, value->second);
    }
  });
  return values;
}

}  // namespace

void for_each_tensor(const torch::nn::Module& module,
                     const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  visit_tensors_of(module, "", visit);
}

std::string some_differences(const std::vector<std::string>& differences) {
  std::string list = differences[0];
  for (std::size_t i = 1; i < std::min(differences.size(), kNamedDifferences); ++i) {
    list += "; " + differences[i];
  }
  if (differences.size() > kNamedDifferences) {
    list += concat("; and ", differences.size() - kNamedDifferences, " more");
  }
  return list;
}

ShardedMembers::ShardedMembers(const ShardedUnits& units) {
  for (const ShardedUnits::Unit& unit : units.units()) {
    for (const auto& flat : unit.flats) {
      for (std::size_t i = 0; i < flat->members().size(); ++i) {
        const FlatParameter::Member& member = flat->members()[i];
        places_.emplace(member.parameter.unsafeGetTensorImpl(), Place{flat.get(), i});
        places_of_pieces_.emplace(member.piece.unsafeGetTensorImpl(), Place{flat.get(), i});
      }
    }
  }
}

const ShardedMembers::Place* ShardedMembers::place_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? nullptr : &found->second;
}

const ShardedMembers::Place* ShardedMembers::place_of_piece(const at::Tensor& piece) const {
  const auto found = places_of_pieces_.find(piece.unsafeGetTensorImpl());
  return found == places_of_pieces_.end() ? nullptr : &found->second;
}

const FlatParameter::Member* ShardedMembers::find(const at::Tensor& parameter) const {
  const Place* const place = place_of(parameter);
  return place == nullptr ? nullptr : &place->flat->members()[place->index];
}

std::vector<at::Tensor> pieces_of(const FlatParameter& flat) {
  std::vector<at::Tensor> pieces;
  for (const FlatParameter::Member& member : flat.members()) pieces.push_back(member.piece);
  return pieces;
}

TensorDict gather_full_state(const torch::nn::Module& module, const ShardedUnits& units,
                             bool keep) {
  std::map<const void*, at::Tensor> values;
  for (const ShardedUnits::Unit& unit : units.units()) {
    for (const auto& flat : unit.flats) {
      const at::Tensor gathered = units.whole(*flat);
      for (std::size_t i = 0; keep && i < flat->members().size(); ++i) {
        values.emplace(flat->members()[i].parameter.unsafeGetTensorImpl(),
                       flat->value_in(gathered, i));
      }
    }
  }
  TensorDict result;
  if (!keep) return result;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    const auto value = values.find(tensor.unsafeGetTensorImpl());
    result.emplace_back(name, value == values.end() ? tensor.detach().clone() : value->second);
  });
  return result;
}

std::vector<std::string> state_differences(const torch::nn::Module& module,
                                           const ShardedMembers& members,
                                           const TensorDict& values) {
  std::map<std::string, at::Tensor> given(values.begin(), values.end());
  std::vector<std::string> differences;
  std::set<std::string> known;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    known.insert(name);
    const auto value = given.find(name);
    if (value == given.end()) return differences.push_back(concat("'", name, "' is missing"));
    const FlatParameter::Member* const member = members.find(tensor);
    const at::ScalarType dtype =
        member == nullptr ? tensor.scalar_type() : member->piece.scalar_type();
    if (value->second.sizes() == tensor.sizes() && value->second.scalar_type() == dtype) return;
    differences.push_back(concat("'", name, "' is ", c10::toString(value->second.scalar_type()),
                                 " ", value->second.sizes(), " and not ", c10::toString(dtype), " ",
                                 tensor.sizes()));
  });
  for (const auto& [name, value] : values) {
    if (!known.contains(name)) differences.push_back(concat("'", name, "' is unexpected"));
  }
  return differences;
}

void load_full_state(const torch::nn::Module& module, const ShardedUnits& units,
                     const TensorDict& state) {
  const ShardedMembers members(units);
  const TensorDict values = with_tied(module, state);
  const std::vector<std::string> differences = state_differences(module, members, values);
  if (!differences.empty()) {
    throw UsageError(
        concat("FullySharded::load_full_state_dict: the state dict does not fit the "
               "model: ",
               some_differences(differences), "; load one of full_state_dict() of the same model"));
  }
  std::map<std::string, at::Tensor> given(values.begin(), values.end());
  const c10::NoGradGuard no_grad;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    const ShardedMembers::Place* const place = members.place_of(tensor);
    if (place == nullptr) {
      tensor.copy_(given.at(name));
    } else {
      place->piece().copy_(place->flat->piece_of(place->index, given.at(name)));
    }
  });
}

}  // namespace lockstep::inline internal

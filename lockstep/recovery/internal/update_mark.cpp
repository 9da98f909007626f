#include "lockstep/recovery/internal/update_mark.h"

#include <algorithm>
#include <map>
#include <memory>
#include <typeinfo>

#include <ATen/ops/hash_tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/checksum.h"

namespace lockstep::inline internal {
namespace {

namespace optim = torch::optim;

// Not of a class derived from it, which may write to parameters as it likes.
template <class Kind>
bool is_of(const optim::Optimizer& optimizer) {
  return typeid(optimizer) == typeid(Kind);
}

// Lockstep's own count each change of a parameter.
template <class... Kinds>
bool is_of_any(const optim::Optimizer& optimizer) {
  return (is_of<Kinds>(optimizer) || ...);
}

// What the program itself changes is counted by the parameter.
std::uint64_t with_version(std::uint64_t updates, const at::Tensor& parameter) {
  return updates << 32U ^ static_cast<std::uint64_t>(parameter._version());
}

// 0: it has had no update. Optimizers that count have their own number.
template <class State>
std::uint64_t updates_of(optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return 0;
  return static_cast<std::uint64_t>(static_cast<State&>(*found->second).step());
}

// The moment is changed, or made, before the parameter.
std::uint64_t version_of_moment(optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return 0;
  const at::Tensor& moment = static_cast<optim::SGDParamState&>(*found->second).momentum_buffer();
  return moment.defined() ? static_cast<std::uint64_t>(moment._version()) + 1 : 0;
}

}  // namespace

std::optional<std::size_t> group_of(optim::Optimizer* optimizer, const at::Tensor& parameter) {
  if (optimizer == nullptr) return std::nullopt;
  const auto& groups = optimizer->param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (std::ranges::any_of(groups[group].params(),
                            [&](const at::Tensor& one) { return one.is_same(parameter); }))
      return group;
  }
  return std::nullopt;
}

std::uint64_t update_mark(optim::Optimizer* optimizer, std::optional<std::size_t> group,
                          const at::Tensor& parameter) {
  if (group) {
    if (is_of_any<SGD, Adam, AdamW, Adagrad, NAdam, RAdam, Adamax, Adadelta, RMSprop, Lion, LAMB>(
            *optimizer)) {
      return parameter._version();
    }
    if (is_of<optim::Adam>(*optimizer) || is_of<optim::AdamW>(*optimizer)) {
      return parameter._version();
    }
    if (is_of<optim::Adagrad>(*optimizer)) {
      return with_version(updates_of<optim::AdagradParamState>(*optimizer, parameter), parameter);
    }
    if (is_of<optim::RMSprop>(*optimizer)) {
      return with_version(updates_of<optim::RMSpropParamState>(*optimizer, parameter), parameter);
    }
    if (is_of<optim::SGD>(*optimizer)) {
      const auto& options =
          static_cast<optim::SGDOptions&>(optimizer->param_groups()[*group].options());
      if (options.momentum() != 0)
        return with_version(version_of_moment(*optimizer, parameter), parameter);
    }
  }
  return parameter.requires_grad() ? hash_of(parameter) : 0;
}

std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  if (plain.is_cpu() && plain.is_non_overlapping_and_dense()) {
    return hash_bytes(plain.const_data_ptr(), plain.nbytes());
  }
  return at::hash_tensor(plain).cpu().const_data_ptr<std::uint64_t>()[0];
}

std::uint64_t hash_of_all(const std::vector<at::Tensor>& parameters) {
  std::map<std::shared_ptr<ModelCopy>, std::vector<std::uint64_t>> changes;
  std::vector<std::uint64_t> hashes;
  for (const at::Tensor& parameter : parameters) {
    const auto [copy, index] = ModelCopy::find(parameter);
    if (!copy || !copy->is_in_use() || !copy->is_on_one_machine()) {
      hashes.push_back(hash_of(parameter));
      continue;
    }
    const auto [found, is_new] = changes.try_emplace(copy);
    if (is_new) found->second = copy->hashes_of_changes();
    hashes.push_back(found->second[index]);
  }
  return hash_bytes(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

}  // namespace lockstep::inline internal

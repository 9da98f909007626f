#include <array>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/snapshot/internal/optimizer_kinds.h"
#include "lockstep/snapshot/sharded_state.h"

namespace lockstep {

inline namespace internal {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

/// A step of an optimizer of LibTorch's over this rank's share. While it lives the optimizer has,
/// in the place of each parameter that ranks share, a tensor over this rank's part, and in its
/// state tensors over the same part: all operations of these optimizers are by element.
template <class Kind>
class ShareStep {
 public:
  explicit ShareStep(Optimizer& optimizer) : optimizer_(optimizer) {}
  ShareStep(const ShareStep&) = delete;
  ShareStep& operator=(const ShareStep&) = delete;
  ~ShareStep() { put_back(); }

  void run(const CopyPlaces& places) {
    // Where gradients lie, so that they need no memory of their own.
    places.average_in_place();
    steps_.begin(parameters_of(optimizer_), digest());
    prepare_states();
    steps_.commit();
    for (OptimizerParamGroup& group : optimizer_.param_groups()) {
      for (at::Tensor& parameter : group.params()) replace(parameter);
    }
    optimizer_.step();
    for (auto& [impl, share] : shares_) keep_state(share);
    put_back();
    steps_.end();
  }

 private:
  using State = typename Kind::State;
  using Tensors = std::array<at::Tensor, CopyLayout::kStates>;

  /// What stands for a parameter, and what it stands for.
  struct Share {
    at::Tensor parameter = {};
    at::Tensor original = {};
    ModelCopy::Place place = {};
    Tensors parts = {};   ///< Of the state, what the step changes.
    Tensors wholes = {};  ///< The tensors of which these are parts.
  };

  /// What ranks must have alike.
  std::uint64_t digest() const {
    std::vector<double> values;
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) {
      Kind::visit_options(static_cast<const typename Kind::Options&>(group.options()),
                          [&](const char*, const auto& value) { add(values, value); });
      for (const at::Tensor& parameter : group.params()) {
        if (!ModelCopy::find(parameter).copy) continue;
        const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
        values.push_back(found == optimizer_.state().end() ? 0 : 1);
        if (found == optimizer_.state().end()) continue;
        Kind::visit_state(static_cast<const State&>(*found->second),
                          [&](const char*, const auto& value) {
                            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>)
                              values.push_back(value.defined() ? 1 : 0);
                            else
                              values.push_back(static_cast<double>(value));
                          });
      }
    }
    return hash_bytes(values.data(), values.size() * sizeof(double));
  }
  template <class Value>
  static void add(std::vector<double>& values, const Value& value) {
    if constexpr (std::is_same_v<Value, std::tuple<double, double>>) {
      values.insert(values.end(), {std::get<0>(value), std::get<1>(value)});
    } else {
      values.push_back(static_cast<double>(value));
    }
  }

  template <class Visit>
  static void visit_tensors(State& state, const Visit& visit) {
    std::size_t k = 0;
    Kind::visit_state(state, [&](const char*, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) visit(k++, value);
    });
  }

  /// What may fail of adopt(), before anything is written.
  void prepare_states() {
    for (const at::Tensor& parameter : parameters_of(optimizer_)) {
      const ModelCopy::Place place = ModelCopy::find(parameter);
      const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (!place.copy || found == optimizer_.state().end()) continue;
      visit_tensors(static_cast<State&>(*found->second), [&](std::size_t k, at::Tensor& tensor) {
        if (!tensor.defined()) return;
        place.copy->prepare_state(place.index, k, tensor, tensor.scalar_type());
      });
    }
  }

  void replace(at::Tensor& parameter) {
    const ModelCopy::Place place = ModelCopy::find(parameter);
    if (!place.copy) return;
    replaced_.emplace_back(&parameter, parameter);
    const auto [known, is_new] = shares_.try_emplace(parameter.unsafeGetTensorImpl());
    if (is_new) make_share(known->second, parameter, place);
    parameter = known->second.parameter;
  }

  void make_share(Share& share, const at::Tensor& parameter, const ModelCopy::Place& place) {
    const auto& [copy, index] = place;
    const ModelCopy::Part part = copy->part(index);
    share.original = parameter;
    share.place = place;
    share.parameter = over(copy->parameter_at(index, part.begin), part.size(),
                           copy->view(index).scalar_type());
    // Without one the optimizer passes over it.
    if (!copy->is_reached(index)) return;
    share.parameter.mutable_grad() = copy->averaged_part(index);
    move_state(share);
  }

  static at::Tensor over(std::byte* data, std::int64_t elements, at::ScalarType dtype) {
    return at::from_blob(data, {elements}, at::TensorOptions(dtype));
  }

  void move_state(Share& share) {
    auto& states = optimizer_.state();
    const auto found = states.find(share.original.unsafeGetTensorImpl());
    if (found == states.end()) return;
    // What may fail comes first: the optimizer keeps its state then.
    visit_tensors(static_cast<State&>(*found->second), [&](std::size_t k, at::Tensor& tensor) {
      if (!tensor.defined()) return;
      share.wholes[k] = adopt(share, k, tensor);
      share.parts[k] = part_of_state(share, k);
    });
    auto state = std::move(found->second);
    states.erase(found);
    visit_tensors(static_cast<State&>(*state), [&](std::size_t k, at::Tensor& tensor) {
      if (tensor.defined()) tensor = share.parts[k];
    });
    states[share.parameter.unsafeGetTensorImpl()] = std::move(state);
  }

  static at::Tensor adopt(const Share& share, std::size_t k, const at::Tensor& kept) {
    const auto& [copy, index] = share.place;
    const at::Tensor& model = copy->view(index);
    at::Tensor fitting = kept;
    if (kept.defined() && kept.strides() != model.strides()) {
      fitting = at::empty_like(model, model.options().dtype(kept.scalar_type()));
      fitting.copy_(kept);
    }
    return copy->adopt_state(index, k, fitting, kept.scalar_type(), 0);
  }

  static at::Tensor part_of_state(const Share& share, std::size_t k) {
    const auto& [copy, index] = share.place;
    const ModelCopy::Part part = copy->part(index);
    return over(copy->state_at(index, k, part.begin), part.size(), share.wholes[k].scalar_type());
  }

  /// What the step has made of the state, and what it has made anew.
  void keep_state(Share& share) {
    // LibTorch counts no change through other tensors.
    if (share.parameter.grad().defined() && !share.original.is_inference()) {
      share.original.unsafeGetTensorImpl()->bump_version();
    }
    auto& states = optimizer_.state();
    const auto found = states.find(share.parameter.unsafeGetTensorImpl());
    if (found == states.end()) return;
    const auto& [copy, index] = share.place;
    visit_tensors(static_cast<State&>(*found->second), [&](std::size_t k, at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const at::Tensor& part = share.parts[k];
      if (part.defined() && part.const_data_ptr() == tensor.const_data_ptr()) return;
      if (!share.wholes[k].defined()) {
        share.wholes[k] = copy->adopt_state(index, k, at::Tensor(), tensor.scalar_type(), 0);
      }
      part_of_state(share, k).copy_(tensor);
    });
  }

  void put_back() {
    auto& states = optimizer_.state();
    for (auto& [impl, share] : shares_) {
      const auto found = states.find(share.parameter.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      auto state = std::move(found->second);
      states.erase(found);
      bool is_whole = true;  // Else the step that made it has failed.
      visit_tensors(static_cast<State&>(*state), [&](std::size_t k, at::Tensor& tensor) {
        is_whole = is_whole && tensor.defined() == share.wholes[k].defined();
        tensor = share.wholes[k];
      });
      if (is_whole) states[impl] = std::move(state);
    }
    for (auto& [slot, original] : replaced_) *slot = original;
    replaced_.clear();
    shares_.clear();
  }

  Optimizer& optimizer_;
  CopySteps steps_;
  std::unordered_map<c10::TensorImpl*, Share> shares_;  ///< By the parameter's.
  std::vector<std::pair<at::Tensor*, at::Tensor>> replaced_;
};

[[noreturn]] void refuse(const std::string& reason) {
  throw UsageError(concat("step_optimizer: ", reason,
                          "; with one_copy_per_machine use SGD, Adam, AdamW, RMSprop or Adagrad of "
                          "LibTorch, or an optimizer of lockstep/optim/optimizers.h"));
}

}  // namespace
}  // namespace internal

void step_optimizer(torch::optim::Optimizer& optimizer) {
  const auto step = [&] { optimizer.step(); };
  if (!ModelCopy::any() || find_description(optimizer) != nullptr) return step();
  const CopyPlaces places(parameters_of(optimizer));
  if (places.copies.empty()) return step();
  if (dynamic_cast<const ShardedState*>(&optimizer) != nullptr) {
    refuse("the optimizer's state is in shards already");
  }
  const c10::NoGradGuard no_grad;
  const bool is_known = with_optimizer_kind(optimizer, [&](auto kind) {
    if constexpr (!std::is_same_v<decltype(kind), DescribedKind>) {
      const Optimizer& base = optimizer;
      if (typeid(base) != typeid(typename decltype(kind)::Optimizer)) {
        refuse("the optimizer is of a class of the program's, whose step() may need whole parameters");
      }
      ShareStep<decltype(kind)>(optimizer).run(places);
    }
  });
  if (!is_known) refuse("the optimizer cannot update a share of each parameter");
}

}  // namespace lockstep

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
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
#include "lockstep/snapshot/internal/optimizer_state.h"
#include "lockstep/snapshot/state_dict.h"

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

/// Takes the optimizer's parameters away, and puts them back.
class ParametersGuard {
 public:
  explicit ParametersGuard(Optimizer& optimizer) : optimizer_(optimizer) {
    for (OptimizerParamGroup& group : optimizer.param_groups()) {
      parameters_.push_back(std::exchange(group.params(), {}));
    }
  }
  ParametersGuard(const ParametersGuard&) = delete;
  ParametersGuard& operator=(const ParametersGuard&) = delete;
  ~ParametersGuard() {
    auto parameters = parameters_.begin();
    for (OptimizerParamGroup& group : optimizer_.param_groups()) {
      group.params() = std::move(*parameters++);
    }
  }
  const std::vector<at::Tensor>& of_group(std::size_t group) const { return parameters_[group]; }

 private:
  Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

/// Takes the optimizer's state away, and puts it back.
class StatesGuard {
 public:
  explicit StatesGuard(Optimizer& optimizer)
      : optimizer_(optimizer), states_(std::exchange(optimizer.state(), {})) {}
  StatesGuard(const StatesGuard&) = delete;
  StatesGuard& operator=(const StatesGuard&) = delete;
  ~StatesGuard() { optimizer_.state() = std::move(states_); }

 private:
  Optimizer& optimizer_;
  OptimizerStates states_;
};

/// A step of an optimizer of LibTorch's over shares of parameters, chunk by chunk. For each chunk
/// the optimizer makes a step of its own, in which it has, in the place of its parameters and their
/// state, tensors over the chunk's elements: all operations of these optimizers are by element.
template <class Kind>
class ShareStep {
 public:
  explicit ShareStep(Optimizer& optimizer) : optimizer_(optimizer) {}
  ShareStep(const ShareStep&) = delete;
  ShareStep& operator=(const ShareStep&) = delete;

  void run() {
    steps_.begin(parameters_of(optimizer_), digest());
    collect();
    find_results();
    prepare_states();
    steps_.commit();
    adopt_states();
    step_ordinary();
    const auto run_shard = [this] { update_share(); };
    run_shard();
    keep_states();
    steps_.end(run_shard);
  }

 private:
  using State = typename Kind::State;
  using Tensors = std::array<at::Tensor, CopyLayout::kStates>;

  /// A parameter of which ranks have one copy, and which has a gradient.
  struct Share {
    at::Tensor parameter = {};
    std::vector<std::size_t> groups = {};  ///< One for each time that it occurs.
    ModelCopy::Place place = {};
    std::unique_ptr<State> before = {};  ///< The step. Null: there is no state.
    std::unique_ptr<State> after = {};
    Tensors kept = {};    ///< Of `before`, in the parameter's order.
    Tensors wholes = {};  ///< Of `after`.
  };
  /// What stands for some elements of a parameter.
  struct Elements {
    Share* share = nullptr;
    std::int64_t begin = 0;
    at::Tensor parameter = {};
    Tensors states = {};
  };

  /// What ranks must have alike.
  std::uint64_t digest() const {
    std::vector<double> values;
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) {
      Kind::visit_options(static_cast<const typename Kind::Options&>(group.options()),
                          [&](const char*, const auto& value) { add(values, value); });
      for (const at::Tensor& parameter : group.params()) {
        const ModelCopy::Place place = ModelCopy::find(parameter);
        if (!place.copy) continue;
        std::size_t k = 0;
        const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
        values.push_back(found == optimizer_.state().end() ? 0 : 1);
        if (found == optimizer_.state().end()) continue;
        Kind::visit_state(
            static_cast<const State&>(*found->second), [&](const char*, const auto& value) {
              if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
                values.push_back(value.defined() ? 1 : 0);
                values.push_back(place.copy->digest_of_new_state(place.index, k++, value));
              } else {
                values.push_back(static_cast<double>(value));
              }
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

  void collect() {
    std::unordered_map<c10::TensorImpl*, std::size_t> known;
    const auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      for (const at::Tensor& parameter : groups[group].params()) {
        const ModelCopy::Place place = ModelCopy::find(parameter);
        // Without a gradient the optimizer passes over it.
        if (!place.copy || !place.copy->is_reached(place.index)) continue;
        const auto [found, is_new] =
            known.try_emplace(parameter.unsafeGetTensorImpl(), shares_.size());
        if (is_new) add_share(parameter, place);
        shares_[found->second].groups.push_back(group);
      }
    }
  }

  void add_share(const at::Tensor& parameter, const ModelCopy::Place& place) {
    Share& share = shares_.emplace_back();
    share.parameter = parameter;
    share.place = place;
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return;
    share.before = std::make_unique<State>(static_cast<const State&>(*found->second));
    visit_tensors(*share.before, [&](std::size_t k, at::Tensor& tensor) {
      share.kept[k] = tensor;
      const at::Tensor& model = place.copy->view(place.index);
      if (!tensor.defined() || tensor.strides() == model.strides()) return;
      share.kept[k] = at::empty_like(model, model.options().dtype(tensor.scalar_type()));
      share.kept[k].copy_(tensor);
    });
  }

  /// What the step makes of states, but for their elements: a step of no elements tells.
  void find_results() {
    std::vector<Elements> nothing;
    for (Share& share : shares_) {
      Elements& none = nothing.emplace_back();
      none.share = &share;
      const auto options = at::TensorOptions(share.parameter.scalar_type());
      none.parameter = at::empty({0}, options);
      none.parameter.mutable_grad() = at::empty({0}, options);
      for (std::size_t k = 0; k < share.kept.size(); ++k) {
        if (!share.kept[k].defined()) continue;
        none.states[k] = at::empty({0}, at::TensorOptions(share.kept[k].scalar_type()));
      }
    }
    step_over(nothing, [](const Elements& none, const State& state) {
      none.share->after = std::make_unique<State>(state);
    });
  }

  /// Calls step() with these in the place of all parameters, and then `keep` with each that has a
  /// state.
  template <class Keep>
  void step_over(const std::vector<Elements>& all, const Keep& keep) {
    const ParametersGuard parameters(optimizer_);
    const StatesGuard states(optimizer_);
    for (const Elements& one : all) {
      for (const std::size_t group : one.share->groups) {
        optimizer_.param_groups()[group].params().push_back(one.parameter);
      }
      if (!one.share->before) continue;
      auto state = std::make_unique<State>(*one.share->before);
      visit_tensors(*state, [&](std::size_t k, at::Tensor& tensor) { tensor = one.states[k]; });
      optimizer_.state()[one.parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    optimizer_.step();
    for (const Elements& one : all) {
      const auto found = optimizer_.state().find(one.parameter.unsafeGetTensorImpl());
      if (found != optimizer_.state().end()) keep(one, static_cast<State&>(*found->second));
    }
  }

  template <class Visit>
  void visit_results(const Visit& visit) {
    for (Share& share : shares_) {
      if (!share.after) continue;
      visit_tensors(*share.after, [&](std::size_t k, at::Tensor& tensor) {
        if (tensor.defined()) visit(share, k, tensor);
      });
    }
  }

  /// What may fail of adopt_states(), before anything is written.
  void prepare_states() {
    visit_results([](Share& share, std::size_t k, const at::Tensor& result) {
      const auto& [copy, index] = share.place;
      copy->prepare_state(index, k, share.kept[k], result.scalar_type());
    });
  }

  void adopt_states() {
    visit_results([](Share& share, std::size_t k, const at::Tensor& result) {
      const auto& [copy, index] = share.place;
      share.wholes[k] = copy->adopt_state(index, k, share.kept[k], result.scalar_type(), 0);
    });
  }

  /// Parameters that are this rank's own.
  void step_ordinary() {
    const ParametersGuard parameters(optimizer_);
    bool any = false;
    for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
      for (const at::Tensor& parameter : parameters.of_group(group)) {
        if (ModelCopy::find(parameter).copy) continue;
        optimizer_.param_groups()[group].params().push_back(parameter);
        any = true;
      }
    }
    if (any) optimizer_.step();
  }

  /// Of the share that ModelCopy::part() is of, in the same chunks on each rank. Small parameters
  /// go together.
  void update_share() {
    for (Share& share : shares_) {
      const auto& [copy, index] = share.place;
      if (waiting_copy_ != copy) update_waiting();
      waiting_copy_ = copy;
      const auto bytes = static_cast<std::int64_t>(share.parameter.element_size());
      const ModelCopy::Part part = copy->part(index);
      for (std::int64_t begin = part.begin; begin < part.end;) {
        const std::int64_t room = blocks((ModelCopy::kChunkBytes - waiting_bytes_) / bytes);
        const std::int64_t elements = std::min(room, part.end - begin);
        if (elements > 0) add(share, begin, elements);
        begin += elements;
        if (begin < part.end) update_waiting();
      }
    }
    update_waiting();
  }

  /// Elements in whole blocks.
  static std::int64_t blocks(std::int64_t elements) {
    return elements / CopyLayout::kBlockElements * CopyLayout::kBlockElements;
  }

  void add(Share& share, std::int64_t begin, std::int64_t elements) {
    const auto& [copy, index] = share.place;
    std::byte* const average = copy->scratch() + waiting_bytes_;
    copy->average(index, begin, elements, average);
    Elements& one = waiting_.emplace_back();
    one.share = &share;
    one.begin = begin;
    one.parameter = over(copy->parameter_at(index, begin), elements, share.parameter.scalar_type());
    one.parameter.mutable_grad() = over(average, elements, share.parameter.scalar_type());
    pieces_.push_back(copy->piece(one.parameter.const_data_ptr(), one.parameter.nbytes()));
    for (std::size_t k = 0; k < share.wholes.size(); ++k) {
      if (!share.wholes[k].defined()) continue;
      const at::Tensor state = state_over(share, k, begin, elements);
      pieces_.push_back(copy->piece(state.const_data_ptr(), state.nbytes()));
      if (share.kept[k].defined()) one.states[k] = state;
    }
    const std::int64_t whole_blocks = blocks(elements + CopyLayout::kBlockElements - 1);
    waiting_bytes_ += whole_blocks * static_cast<std::int64_t>(share.parameter.element_size());
  }

  void update_waiting() {
    if (!waiting_.empty()) {
      waiting_copy_->run_chunk(pieces_, [this] {
        step_over(waiting_, [](const Elements& one, State& state) { keep_elements(one, state); });
      });
    }
    waiting_.clear();
    pieces_.clear();
    waiting_bytes_ = 0;
  }

  /// What the step has made.
  static void keep_elements(const Elements& one, State& state) {
    visit_tensors(state, [&](std::size_t k, at::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_same(one.states[k])) return;
      state_over(*one.share, k, one.begin, tensor.numel()).copy_(tensor);
    });
  }

  static at::Tensor state_over(const Share& share, std::size_t k, std::int64_t begin,
                               std::int64_t elements) {
    const auto& [copy, index] = share.place;
    return over(copy->state_at(index, k, begin), elements, share.wholes[k].scalar_type());
  }
  static at::Tensor over(std::byte* data, std::int64_t elements, at::ScalarType dtype) {
    return at::from_blob(data, {elements}, at::TensorOptions(dtype));
  }

  void keep_states() {
    for (Share& share : shares_) {
      // LibTorch counts no change through other tensors.
      if (!share.parameter.is_inference()) share.parameter.unsafeGetTensorImpl()->bump_version();
      if (!share.after) continue;
      visit_tensors(*share.after,
                    [&](std::size_t k, at::Tensor& tensor) { tensor = share.wholes[k]; });
      optimizer_.state()[share.parameter.unsafeGetTensorImpl()] = std::move(share.after);
    }
  }

  Optimizer& optimizer_;
  CopySteps steps_;
  std::deque<Share> shares_;  ///< In the order of the optimizer's parameters, on all ranks.
  /// Elements whose gradients lie in the buffer of their copy, for one chunk.
  std::vector<Elements> waiting_;
  std::shared_ptr<ModelCopy> waiting_copy_;
  std::vector<ModelCopy::Piece> pieces_;
  std::int64_t waiting_bytes_ = 0;
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
  if (CopyPlaces(parameters_of(optimizer)).copies.empty()) return step();
  if (dynamic_cast<const ShardedState*>(&optimizer) != nullptr) {
    refuse("the optimizer's state is in shards already");
  }
  const c10::NoGradGuard no_grad;
  const bool is_known = with_optimizer_kind(optimizer, [&](auto kind) {
    if constexpr (!std::is_same_v<decltype(kind), DescribedKind>) {
      const Optimizer& base = optimizer;
      if (typeid(base) != typeid(typename decltype(kind)::Optimizer)) {
        refuse(
            "the optimizer is of a class of the program's, whose step() may need whole parameters");
      }
      ShareStep<decltype(kind)>(optimizer).run();
    }
  });
  if (!is_known) refuse("the optimizer cannot update a share of each parameter");
}

}  // namespace lockstep

#include "lockstep/snapshot/internal/optimizer_state.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/optimizer_kinds.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

std::string unknown_optimizer() {
  return concat("snapshots know ", kKnownOptimizers, "; use one of these");
}

// Writing.

c10::IValue option_value(double value) {
  return value;
}
c10::IValue option_value(bool value) {
  return value;
}
c10::IValue option_value(const std::tuple<double, double>& value) {
  return c10::ivalue::Tuple::create(std::get<0>(value), std::get<1>(value));
}

/// Python counts steps in a float32 tensor; float64 where that would lose the count.
at::Tensor step_tensor(std::int64_t step) {
  constexpr std::int64_t kExactInFloat = std::int64_t{1} << 24;
  return at::scalar_tensor(static_cast<double>(step),
                           step <= kExactInFloat ? at::kFloat : at::kDouble);
}

template <class Kind>
c10::IValue group_value(const Kind& kind, const OptimizerParamGroup& group,
                        std::int64_t first_index) {
  c10::impl::GenericDict dict = make_dict();
  Kind::visit_options(static_cast<const typename Kind::Options&>(group.options()),
                      [&](const char* name, const auto& value) {
                        dict.insert_or_assign(name, option_value(value));
                      });
  visit_constants(kind, [&](const char* name, const c10::IValue& value, bool) {
    dict.insert_or_assign(name, value);
  });
  if constexpr (std::is_same_v<Kind, DescribedKind>) {
    const auto& options = static_cast<const DescribedOptions&>(group.options());
    for (const auto& [name, value] : options.scheduler_values) dict.insert_or_assign(name, value);
  }
  c10::impl::GenericList indices = make_list();
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    indices.push_back(first_index + static_cast<std::int64_t>(i));
  }
  dict.insert_or_assign("params", indices);
  return dict;
}

struct StateWriter {
  c10::impl::GenericDict& dict;
  void operator()(const char* name, std::int64_t step) const {
    dict.insert_or_assign(name, step_tensor(step));
  }
  void operator()(const char* name, double number) const {
    dict.insert_or_assign(name, at::scalar_tensor(number, at::kFloat));
  }
  void operator()(const char* name, const at::Tensor& tensor) const {
    if (tensor.defined()) dict.insert_or_assign(name, tensor.detach());
  }
};

template <class Kind>
c10::IValue write_optimizer(const Kind& kind, const Optimizer& optimizer,
                            const OptimizerStates& all_states) {
  c10::impl::GenericDict states = make_dict();
  c10::impl::GenericList groups = make_list();
  std::int64_t index = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    groups.push_back(group_value(kind, group, index));
    for (const at::Tensor& parameter : group.params()) {
      const auto found = all_states.find(parameter.unsafeGetTensorImpl());
      if (found != all_states.end()) {
        c10::impl::GenericDict state = make_dict();
        Kind::visit_state(static_cast<const typename Kind::State&>(*found->second),
                          StateWriter{state});
        states.insert_or_assign(index, state);
      }
      ++index;
    }
  }
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("state", states);
  dict.insert_or_assign("param_groups", groups);
  return dict;
}

// Reading: first everything is made, then everything is put in place.

struct OptimizerUpdate {
  std::vector<std::unique_ptr<OptimizerOptions>> group_options;
  /// By parameter, in the order of the groups; null where there is no state.
  std::vector<std::unique_ptr<OptimizerParamState>> states;
};

class OptimizerReader {
 public:
  OptimizerReader(const Optimizer& optimizer, const c10::IValue& values, const std::string& source,
                  bool copies)
      : optimizer_(optimizer),
        shards_(dynamic_cast<const ShardedState*>(&optimizer)),
        values_(values),
        source_(concat("load ", source)),
        copies_(copies) {}

  template <class Kind>
  OptimizerUpdate read(const Kind& kind) {
    kind_name_ = kind_name(kind);
    is_described_ = std::is_same_v<Kind, DescribedKind>;
    OptimizerUpdate update;
    const c10::IValue groups = entry(values_, "param_groups", source_);
    if (!groups.isList()) fail("'param_groups' is no list");
    const std::vector<OptimizerParamGroup>& targets = optimizer_.param_groups();
    if (groups.toListRef().size() != targets.size()) {
      fail(concat("it has ", groups.toListRef().size(), " parameter groups, the optimizer has ",
                  targets.size()));
    }
    const c10::IValue states = entry(values_, "state", source_);
    if (!states.isGenericDict()) fail("'state' is no dict");
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const c10::IValue& group = groups.toListRef()[i];
      update.group_options.push_back(read_options(kind, group, targets[i]));
      const std::vector<std::int64_t> indices = read_indices(group);
      if (indices.size() != targets[i].params().size()) {
        fail(concat("group ", i, " has ", indices.size(), " parameters, the optimizer's has ",
                    targets[i].params().size()));
      }
      for (std::size_t k = 0; k < indices.size(); ++k) {
        update.states.push_back(
            read_state(kind, states, indices[k], targets[i], *update.group_options.back(), k));
      }
    }
    return update;
  }

 private:
  template <class Kind>
  std::unique_ptr<OptimizerOptions> read_options(const Kind& kind, const c10::IValue& group,
                                                 const OptimizerParamGroup& target) const {
    visit_constants(kind, [&](const char* name, const c10::IValue& wanted, bool is_fixed) {
      if (!is_fixed || !group.isGenericDict()) return;
      const c10::IValue value = find_value(group, name);
      if (value.isBool() && value.toBool() != wanted.toBool()) {
        fail(concat("its '", name, "' is ", value.toBool() ? "True" : "False",
                    ", which this optimizer does not offer"));
      }
    });
    const auto& current = static_cast<const typename Kind::Options&>(target.options());
    auto options = std::make_unique<typename Kind::Options>(current);
    Kind::visit_options(*options, [&](const char* name, auto& value) {
      // LibTorch's optimizers have no "maximize", and what they save has none.
      if (std::is_same_v<Kind, DescribedKind> && std::string_view(name) == "maximize" &&
          find_value(group, name).isNone()) {
        read_option(false, name, value);
      } else {
        read_option(entry(group, name, describe()), name, value);
      }
    });
    refuse_other_options(kind, group, current);
    if constexpr (std::is_same_v<Kind, DescribedKind>) read_scheduler_values(group, *options);
    return options;
  }

  /// Groups may hold what programs put there, but no option of another optimizer of PyTorch's.
  template <class Kind>
  void refuse_other_options(const Kind& kind, const c10::IValue& group,
                            const typename Kind::Options& options) const {
    std::set<std::string_view> known;
    Kind::visit_options(options, [&](const char* name, const auto&) { known.insert(name); });
    visit_constants(kind, [&](const char* name, const auto&, bool) { known.insert(name); });
    for (const char* const name :
         {"alpha", "amsgrad", "beta2_decay", "betas", "centered", "dampening",
          "decoupled_weight_decay", "eps", "etas", "initial_accumulator_value", "lambd", "lr_decay",
          "momentum", "momentum_decay", "nesterov", "ns_steps", "rho", "t0"}) {
      if (!known.contains(name) && !find_value(group, name).isNone()) {
        fail(concat("its group has '", name, "', an option of another optimizer"));
      }
    }
  }

  void read_scheduler_values(const c10::IValue& group, DescribedOptions& options) const {
    // Files of LibTorch's optimizers have none: the scheduler's own stay.
    for (const char* name : {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"}) {
      const c10::IValue value = find_value(group, name);
      if (!value.isNone()) options.scheduler_values[name] = number(value, concat("'", name, "'"));
    }
  }

  void read_option(const c10::IValue& value, const char* name, double& target) const {
    target = number(value, concat("'", name, "'"));
  }
  void read_option(const c10::IValue& value, const char* name, bool& target) const {
    if (!value.isBool()) fail(concat("its '", name, "' is neither True nor False"));
    target = value.toBool();
  }
  void read_option(const c10::IValue& value, const char* name,
                   std::tuple<double, double>& target) const {
    // Python keeps a list where it was given one.
    const auto elements = value.isTuple()  ? value.toTupleRef().elements().vec()
                          : value.isList() ? value.toListRef().vec()
                                           : std::vector<c10::IValue>{};
    if (elements.size() != 2) fail(concat("its '", name, "' is no pair of numbers"));
    const std::string quoted = concat("'", name, "'");
    target = {number(elements[0], quoted), number(elements[1], quoted)};
  }

  std::vector<std::int64_t> read_indices(const c10::IValue& group) const {
    const c10::IValue value = entry(group, "params", describe());
    if (!value.isList()) fail("'params' is no list");
    std::vector<std::int64_t> indices;
    for (const c10::IValue& index : value.toListRef()) {
      if (!index.isInt()) fail("'params' holds something else than integers");
      indices.push_back(index.toInt());
    }
    return indices;
  }

  template <class Kind>
  std::unique_ptr<OptimizerParamState> read_state(const Kind& kind, const c10::IValue& states,
                                                  std::int64_t index,
                                                  const OptimizerParamGroup& group,
                                                  const OptimizerOptions& options,
                                                  std::size_t place) const {
    const at::Tensor& parameter = group.params()[place];
    const c10::impl::GenericDict all = states.toGenericDict();
    const auto found = all.find(index);
    if (found == all.end()) return nullptr;
    const c10::IValue& values = found->value();
    if (!values.isGenericDict()) fail(concat("the state of parameter ", index, " is no dict"));
    const bool is_kept = !shards_ || shards_->keeps_state_of(parameter);
    at::ScalarType dtype = parameter.scalar_type();
    if constexpr (std::is_same_v<Kind, DescribedKind>) {
      dtype = state_dtype_of(static_cast<const DescribedOptions&>(group.options()), parameter);
    }
    std::unique_ptr<typename Kind::State> state = make_state(kind);
    std::set<std::string_view> known;
    Kind::visit_state(*state, [&](const char* name, auto& target) {
      known.insert(name);
      const std::string of = concat("'", name, "' of parameter ", index);
      const c10::IValue value = find_value(values, name);
      if constexpr (std::is_same_v<std::decay_t<decltype(target)>, at::Tensor>) {
        read_tensor(value, of, parameter, dtype, is_kept, target);
      } else {
        read_number(value, of, target);
      }
    });
    for (const auto& item : values.toGenericDict()) {
      if (item.value().isNone() ||
          (item.key().isString() && known.contains(item.key().toStringRef())))
        continue;
      fail(concat("the state of parameter ", index, " has '", item.key(), "'"));
    }
    if constexpr (std::is_same_v<Kind, DescribedKind>) {
      const auto& described = static_cast<const DescribedOptions&>(options);
      for (std::size_t i = 0; i < kind.description->tensors.size(); ++i) {
        const char* const name = kind.description->tensors[i];
        if (!requires_tensor(described, i) || !find_value(values, name).isNone()) continue;
        fail(concat("the state of parameter ", index, " has no '", name, "'"));
      }
    }
    return is_kept ? std::move(state) : nullptr;
  }

  void read_number(const c10::IValue& value, const std::string& name, std::int64_t& step) const {
    const double count = number(value, name);
    if (!(count >= 0 && count < 0x1p53)) fail(concat(name, " is no count"));
    step = std::llround(count);
  }
  void read_number(const c10::IValue& value, const std::string& name, double& target) const {
    target = number(value, name);
  }

  /// A missing tensor is an undefined one, as in an optimizer without momentum. `dtype`: what the
  /// optimizer keeps, the parameter's unless its options say another.
  void read_tensor(const c10::IValue& value, const std::string& name, const at::Tensor& parameter,
                   at::ScalarType dtype, bool is_kept, at::Tensor& target) const {
    if (value.isNone()) return;
    if (!value.isTensor()) fail(concat(name, " is no tensor"));
    const at::Tensor tensor = value.toTensor();
    const bool is_wider = tensor.scalar_type() == at::kFloat && dtype != at::kDouble;
    if (tensor.sizes() != parameter.sizes() ||
        (tensor.scalar_type() != parameter.scalar_type() && tensor.scalar_type() != dtype &&
         !(is_described_ && is_wider))) {
      fail(concat(name, " is ", tensor.dtype().name(), tensor.sizes(), ", the parameter is ",
                  parameter.dtype().name(), parameter.sizes()));
    }
    if (!is_kept) return;
    const bool is_shared = tensor.storage().use_count() > 1;
    target = tensor.detach().to(parameter.device(), dtype, /*non_blocking=*/false,
                                /*copy=*/copies_ || is_shared);
  }

  /// Python keeps numbers as int, float or a tensor of one element.
  double number(const c10::IValue& value, const std::string& name) const {
    if (value.isDouble()) return value.toDouble();
    if (value.isInt()) return static_cast<double>(value.toInt());
    if (value.isTensor() && value.toTensor().numel() == 1 && !value.toTensor().is_complex()) {
      return value.toTensor().item().toDouble();
    }
    fail(concat(name, " is no number"));
  }

  std::string describe() const { return concat(source_, ", as ", kind_name_); }

  [[noreturn]] void fail(const std::string& reason) const {
    throw UsageError(
        concat(describe(), ": ", reason, "; load it into the optimizer that it was saved from"));
  }

  const Optimizer& optimizer_;
  const ShardedState* shards_;  // null: all states are kept
  const c10::IValue& values_;
  const std::string source_;
  const char* kind_name_ = nullptr;
  bool is_described_ = false;
  const bool copies_;
};

OptimizerUpdate read_optimizer(const Optimizer& optimizer, const c10::IValue& values,
                               const std::string& source, bool copies) {
  std::optional<OptimizerUpdate> update;
  const bool known = with_optimizer_kind(optimizer, [&](auto kind) {
    update = OptimizerReader(optimizer, values, source, copies).read(kind);
  });
  if (!known) throw UsageError(concat("load ", source, ": ", unknown_optimizer()));
  return *std::move(update);
}

void replace_state(Optimizer& optimizer, OptimizerUpdate update) {
  optimizer.state().clear();
  auto next_state = update.states.begin();
  for (std::size_t i = 0; i < update.group_options.size(); ++i) {
    OptimizerParamGroup& group = optimizer.param_groups()[i];
    group.set_options(std::move(update.group_options[i]));
    for (const at::Tensor& parameter : group.params()) {
      std::unique_ptr<OptimizerParamState> state = std::move(*next_state++);
      if (state) optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace

c10::IValue optimizer_state_dict(const Optimizer& optimizer) {
  if (dynamic_cast<const ShardedState*>(&optimizer) != nullptr) {
    throw UsageError(
        "save an optimizer: this rank has a shard of its state only; take "
        "consolidated_state_dict(), which all ranks must call");
  }
  return optimizer_state_dict(optimizer, optimizer.state());
}

c10::IValue optimizer_state_dict(const Optimizer& optimizer, const OptimizerStates& states) {
  c10::IValue dict;
  const bool known = with_optimizer_kind(
      optimizer, [&](auto kind) { dict = write_optimizer(kind, optimizer, states); });
  if (!known) throw UsageError(concat("save an optimizer: ", unknown_optimizer()));
  return dict;
}

void load_optimizer_state_dict(Optimizer& optimizer, const c10::IValue& values,
                               const std::string& source) {
  replace_state(optimizer, read_optimizer(optimizer, values, source, /*copies=*/true));
}

void adopt_optimizer_state_dict(Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source) {
  replace_state(optimizer, read_optimizer(optimizer, values, source, /*copies=*/false));
}

void check_optimizer_state_dict(const Optimizer& optimizer, const c10::IValue& values,
                                const std::string& source) {
  read_optimizer(optimizer, values, source, /*copies=*/false);
}

}  // namespace lockstep::inline internal

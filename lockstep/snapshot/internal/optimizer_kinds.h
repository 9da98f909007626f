#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/snapshot/internal/optimizer_description.h"

/// Options and state of the optimizers that snapshots know, as data with Python's names. `visit` is
/// called with each name and a reference to the value.
namespace lockstep::inline internal {

/// A flag of Python's optimizer, and the value for which LibTorch's optimizer does the same.
using FixedFlag = std::pair<const char*, bool>;

struct SgdKind {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  static constexpr std::array kFixedFlags{FixedFlag{"maximize", false}};

  template <class AnyOptions, class Visit>
  static void visit_options(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <class AnyState, class Visit>
  static void visit_state(AnyState& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

/// Fields of Adam and AdamW.
struct AdamFields {
  template <class AnyOptions, class Visit>
  static void visit_options(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <class AnyState, class Visit>
  static void visit_state(AnyState& state, const Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};

struct AdamKind : AdamFields {
  using Optimizer = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr const char* kName = "Adam";
  static constexpr std::array kFixedFlags{FixedFlag{"maximize", false},
                                          FixedFlag{"decoupled_weight_decay", false}};
};

struct AdamWKind : AdamFields {
  using Optimizer = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr const char* kName = "AdamW";
  static constexpr std::array kFixedFlags{FixedFlag{"maximize", false},
                                          FixedFlag{"decoupled_weight_decay", true}};
};

struct RmspropKind {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";
  static constexpr std::array kFixedFlags{FixedFlag{"maximize", false}};

  template <class AnyOptions, class Visit>
  static void visit_options(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <class AnyState, class Visit>
  static void visit_state(AnyState& state, const Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

struct AdagradKind {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";
  static constexpr std::array kFixedFlags{FixedFlag{"maximize", false}};

  template <class AnyOptions, class Visit>
  static void visit_options(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <class AnyState, class Visit>
  static void visit_state(AnyState& state, const Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

/// One of Lockstep's optimizers.
struct DescribedKind {
  using Options = DescribedOptions;
  using State = DescribedState;
  const OptimizerDescription* description;

  template <class AnyOptions, class Visit>
  static void visit_options(AnyOptions& options, const Visit& visit) {
    for (std::size_t i = 0; i < options.values.size(); ++i) {
      std::visit([&](auto& value) { visit(options.description->options[i].first, value); },
                 options.values[i]);
    }
  }
  template <class AnyState, class Visit>
  static void visit_state(AnyState& state, const Visit& visit) {
    if (state.description->counts_steps) visit("step", state.step);
    for (std::size_t i = 0; i < state.numbers.size(); ++i) {
      visit(state.description->numbers[i], state.numbers[i]);
    }
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      visit(state.description->tensors[i], state.tensors[i]);
    }
  }
};

/// Properties of a kind; Lockstep's optimizers have them in their description.
template <class Kind>
const char* kind_name(const Kind& kind) {
  if constexpr (std::is_same_v<Kind, DescribedKind>) {
    return kind.description->name;
  } else {
    return Kind::kName;
  }
}
template <class Kind>
std::unique_ptr<typename Kind::State> make_state(const Kind& kind) {
  if constexpr (std::is_same_v<Kind, DescribedKind>) {
    return std::make_unique<DescribedState>(*kind.description);
  } else {
    return std::make_unique<typename Kind::State>();
  }
}
/// Calls `visit` for each further entry of Python's parameter groups: name, value, and whether
/// other values are refused on loading.
template <class Kind, class Visit>
void visit_constants(const Kind& kind, const Visit& visit) {
  if constexpr (std::is_same_v<Kind, DescribedKind>) {
    for (const auto& [name, value] : kind.description->constants) {
      visit(name, value, std::string_view(name) == "decoupled_weight_decay");
    }
  } else {
    for (const auto& [name, value] : Kind::kFixedFlags) visit(name, c10::IValue(value), true);
  }
}

inline constexpr const char* kKnownOptimizers =
    "SGD, Adam, AdamW, RMSprop and Adagrad of LibTorch and all of lockstep/optim/optimizers.h";

/// Calls `action` with the kind of the optimizer. False: it is of no known kind.
template <class Action>
bool with_optimizer_kind(const torch::optim::Optimizer& optimizer, const Action& action) {
  if (const OptimizerDescription* const description = find_description(optimizer)) {
    action(DescribedKind{description});
    return true;
  }
  const auto try_kind = [&](auto kind) {
    if (dynamic_cast<const typename decltype(kind)::Optimizer*>(&optimizer) == nullptr)
      return false;
    action(kind);
    return true;
  };
  return try_kind(SgdKind{}) || try_kind(AdamKind{}) || try_kind(AdamWKind{}) ||
         try_kind(RmspropKind{}) || try_kind(AdagradKind{});
}

}  // namespace lockstep::inline internal

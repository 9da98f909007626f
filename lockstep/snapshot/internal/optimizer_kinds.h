#pragma once

#include <array>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

/// The optimizers that snapshots know, as data: which options and which state each has, by Python's
/// names. `visit` is called with each name and a reference to the value.
namespace lockstep::inline internal {

/// A flag that Python's optimizer has beside the options, and the value that it must have for
/// LibTorch's optimizer to do the same.
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

/// What Adam and AdamW have in common.
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

/// Calls `action` with the kind of the optimizer. Returns false when it is none of them.
template <class Action>
bool with_optimizer_kind(const torch::optim::Optimizer& optimizer, const Action& action) {
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

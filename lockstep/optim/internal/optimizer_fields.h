#pragma once

#include <type_traits>

#include "lockstep/optim/optimizers.h"
#include "lockstep/snapshot/internal/optimizer_description.h"

/// The optimizers as data: visit_options() calls `visit` with each option's name and value;
/// Described<Options> says the rest of the description.
namespace lockstep::inline internal {

template <class Given, class Wanted>
concept OptionsAre = std::is_same_v<std::remove_const_t<Given>, Wanted>;

template <OptionsAre<SGDOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("momentum", options.momentum);
  visit("dampening", options.dampening);
  visit("weight_decay", options.weight_decay);
  visit("nesterov", options.nesterov);
  visit("maximize", options.maximize);
}

template <class Options, class Visit>
requires OptionsAre<Options, AdamOptions> || OptionsAre<Options, AdamWOptions>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("betas", options.betas);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("amsgrad", options.amsgrad);
  visit("maximize", options.maximize);
}

template <OptionsAre<AdagradOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("lr_decay", options.lr_decay);
  visit("weight_decay", options.weight_decay);
  visit("initial_accumulator_value", options.initial_accumulator_value);
  visit("eps", options.eps);
  visit("maximize", options.maximize);
}

template <OptionsAre<NAdamOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("betas", options.betas);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("momentum_decay", options.momentum_decay);
  visit("decoupled_weight_decay", options.decoupled_weight_decay);
  visit("maximize", options.maximize);
}

template <OptionsAre<RAdamOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("betas", options.betas);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("decoupled_weight_decay", options.decoupled_weight_decay);
  visit("maximize", options.maximize);
}

template <class Options, class Visit>
requires OptionsAre<Options, AdamaxOptions> || OptionsAre<Options, LAMBOptions>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("betas", options.betas);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("maximize", options.maximize);
}

template <OptionsAre<AdadeltaOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("rho", options.rho);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("maximize", options.maximize);
}

template <OptionsAre<RMSpropOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("alpha", options.alpha);
  visit("eps", options.eps);
  visit("weight_decay", options.weight_decay);
  visit("momentum", options.momentum);
  visit("centered", options.centered);
  visit("maximize", options.maximize);
}

template <OptionsAre<LionOptions> Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("betas", options.betas);
  visit("weight_decay", options.weight_decay);
  visit("maximize", options.maximize);
}

/// What Python's optimizers keep beside the options; `is_fused`: those that Python has a fused
/// kernel for, so that it goes on with the same bits.
using Constants = std::vector<std::pair<const char*, c10::IValue>>;
inline Constants python_constants(bool is_fused, bool has_capturable) {
  Constants constants = {{"foreach", c10::IValue()}, {"differentiable", false}};
  if (has_capturable) constants.emplace_back("capturable", false);
  if (is_fused) constants.emplace_back("fused", true);
  return constants;
}

using TensorsOfOptions = std::vector<std::pair<const char*, const char*>>;

template <class Options>
struct Described;

template <>
struct Described<SGDOptions> {
  static constexpr const char* kName = "SGD";
  static constexpr bool kIsFused = true;
  static constexpr bool kCountsSteps = false;
  static Constants constants() { return python_constants(kIsFused, false); }
  static std::vector<const char*> numbers() { return {}; }
  static std::vector<const char*> tensors() { return {"momentum_buffer"}; }
  // Without one the next step is the first.
  static constexpr std::size_t kRequiredTensors = 0;
  static TensorsOfOptions tensors_of_options() { return {}; }
};

template <>
struct Described<AdamOptions> {
  static constexpr const char* kName = "Adam";
  static constexpr bool kIsFused = true;
  static constexpr bool kCountsSteps = true;
  static constexpr bool kIsDecoupled = false;
  static Constants constants() {
    Constants constants = python_constants(kIsFused, true);
    constants.emplace_back("decoupled_weight_decay", false);
    return constants;
  }
  static std::vector<const char*> numbers() { return {}; }
  static std::vector<const char*> tensors() { return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}; }
  static constexpr std::size_t kRequiredTensors = 2;
  static TensorsOfOptions tensors_of_options() { return {{"amsgrad", "max_exp_avg_sq"}}; }
};

template <>
struct Described<AdamWOptions> : Described<AdamOptions> {
  static constexpr const char* kName = "AdamW";
  static constexpr bool kIsDecoupled = true;
  static Constants constants() {
    Constants constants = python_constants(kIsFused, true);
    constants.emplace_back("decoupled_weight_decay", true);
    return constants;
  }
};

template <>
struct Described<AdagradOptions> {
  static constexpr const char* kName = "Adagrad";
  static constexpr bool kIsFused = true;
  static constexpr bool kCountsSteps = true;
  static Constants constants() { return python_constants(kIsFused, false); }
  static std::vector<const char*> numbers() { return {}; }
  static std::vector<const char*> tensors() { return {"sum"}; }
  static constexpr std::size_t kRequiredTensors = 1;
  static TensorsOfOptions tensors_of_options() { return {}; }
};

/// What those that Lockstep computes itself have in common.
struct OwnKernel {
  static constexpr bool kIsFused = false;
  static constexpr bool kCountsSteps = true;
  static Constants constants() { return python_constants(false, true); }
  static std::vector<const char*> numbers() { return {}; }
  static std::vector<const char*> tensors() { return {"exp_avg", "exp_avg_sq"}; }
  static constexpr std::size_t kRequiredTensors = 2;
  static TensorsOfOptions tensors_of_options() { return {}; }
};

template <>
struct Described<NAdamOptions> : OwnKernel {
  static constexpr const char* kName = "NAdam";
  static std::vector<const char*> numbers() { return {"mu_product"}; }
};

template <>
struct Described<RAdamOptions> : OwnKernel {
  static constexpr const char* kName = "RAdam";
};

template <>
struct Described<AdamaxOptions> : OwnKernel {
  static constexpr const char* kName = "Adamax";
  static std::vector<const char*> tensors() { return {"exp_avg", "exp_inf"}; }
};

template <>
struct Described<AdadeltaOptions> : OwnKernel {
  static constexpr const char* kName = "Adadelta";
  static std::vector<const char*> tensors() { return {"square_avg", "acc_delta"}; }
};

template <>
struct Described<RMSpropOptions> : OwnKernel {
  static constexpr const char* kName = "RMSprop";
  static std::vector<const char*> tensors() {
    return {"square_avg", "momentum_buffer", "grad_avg"};
  }
  static constexpr std::size_t kRequiredTensors = 1;
  static TensorsOfOptions tensors_of_options() {
    return {{"momentum", "momentum_buffer"}, {"centered", "grad_avg"}};
  }
};

template <>
struct Described<LionOptions> : OwnKernel {
  static constexpr const char* kName = "Lion";
  static constexpr bool kCountsSteps = false;
  static Constants constants() { return {}; }
  static std::vector<const char*> tensors() { return {"exp_avg"}; }
  static constexpr std::size_t kRequiredTensors = 1;
};

template <>
struct Described<LAMBOptions> : OwnKernel {
  static constexpr const char* kName = "LAMB";
  static Constants constants() { return {}; }
};

template <class Options>
const OptimizerDescription& description_of() {
  static const OptimizerDescription description = [] {
    using Kind = Described<Options>;
    OptimizerDescription made{.name = Kind::kName,
                              .options = {},
                              .constants = Kind::constants(),
                              .counts_steps = Kind::kCountsSteps,
                              .numbers = Kind::numbers(),
                              .tensors = Kind::tensors(),
                              .required_tensors = Kind::kRequiredTensors,
                              .tensors_of_options = Kind::tensors_of_options()};
    const Options defaults;
    visit_options(defaults, [&](const char* name, const auto& value) {
      made.options.emplace_back(name, value);
    });
    return made;
  }();
  return description;
}

template <class Options>
std::unique_ptr<DescribedOptions> to_described(const Options& options) {
  auto described = std::make_unique<DescribedOptions>(description_of<Options>());
  std::size_t i = 0;
  visit_options(options, [&](const char*, const auto& value) { described->values[i++] = value; });
  described->state_dtype = options.state_dtype;
  return described;
}

template <class Options>
Options from_described(const DescribedOptions& described) {
  Options options;
  std::size_t i = 0;
  visit_options(options, [&](const char*, auto& value) {
    value = std::get<std::remove_reference_t<decltype(value)>>(described.values[i++]);
  });
  options.state_dtype = described.state_dtype;
  return options;
}

}  // namespace lockstep::inline internal

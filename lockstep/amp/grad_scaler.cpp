#include "lockstep/amp/grad_scaler.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/each_once.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep {
namespace {

const std::string kPrefix = "grad_scaler.";

at::Tensor scalar(double value, at::ScalarType dtype) {
  return at::full({}, value, at::TensorOptions(dtype));
}

[[noreturn]] void refuse(const char* name, double value, const char* rule) {
  throw UsageError(concat("GradScaler: ", name, "=", value, " is not ", rule));
}

using Limits = std::numeric_limits<float>;

// Losses and gradients are multiplied by it and by its inverse, in float32.
void check_scale(const char* name, double scale) {
  if (scale >= Limits::min() && scale <= Limits::max()) return;
  refuse(name, scale, "above 0 and finite in float32; 65536 is PyTorch's first");
}

void check_factors(const GradScalerOptions& options) {
  if (!(options.growth_factor > 1 && std::isfinite(options.growth_factor))) {
    refuse("growth_factor", options.growth_factor, "above 1 and finite; 2 is PyTorch's");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    refuse("backoff_factor", options.backoff_factor, "between 0 and 1; 0.5 is PyTorch's");
  }
  if (options.growth_interval < 1) {
    refuse("growth_interval", static_cast<double>(options.growth_interval),
           "a number of steps; it must be 1 or more");
  }
}

// The values of a gradient: of a sparse one those that it has, each index once.
at::Tensor values_of(at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) return gradient;
  // Two float16 values of one index may overflow when they are added.
  if (gradient.scalar_type() == at::kHalf) gradient = gradient.coalesce();
  return gradient._values();
}

/// Of the optimizer's parameters.
struct Gradients {
  CopyPlaces shared;                           ///< Those of one copy per machine.
  std::vector<std::vector<at::Tensor>> lists;  ///< The others, each once, of one device and dtype.
};

void check_dtype(at::ScalarType dtype) {
  if (dtype != at::kHalf) return;
  throw UsageError(
      "GradScaler: a gradient has dtype Half, in which it cannot be unscaled; keep parameters in "
      "float32 and let Autocast cast them");
}

Gradients gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  Gradients result{.shared = CopyPlaces::of_own_gradients(parameters), .lists = {}};
  for (const auto& [copy, indices] : result.shared.copies) {
    for (const std::size_t index : indices) check_dtype(copy->view(index).scalar_type());
  }
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> lists;
  for (at::Tensor& parameter : with_separate_gradients(result.shared.ordinary)) {
    at::Tensor& gradient = parameter.mutable_grad();
    check_dtype(gradient.scalar_type());
    const at::Tensor values = values_of(gradient);
    lists[{values.device().str(), values.scalar_type()}].push_back(values);
  }
  for (auto& [kind, list] : lists) result.lists.push_back(std::move(list));
  return result;
}

struct Findings {
  bool has_gradients = false;
  bool found_inf = false;
};

Findings unscale(const Gradients& gradients, const at::Tensor& scale) {
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  std::vector<at::Tensor> found;  // all are under way before the first is waited for
  for (const auto& list : gradients.lists) {
    found.push_back(at::full({}, 0.0F, list[0].options().dtype(at::kFloat)));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found.back(),
                                                   inverse.to(list[0].device()));
  }
  Findings result{.has_gradients = !gradients.lists.empty()};
  for (const at::Tensor& each : found) {
    result.found_inf = result.found_inf || each.item<float>() != 0;
  }
  if (!gradients.shared.copies.empty()) {
    const double squares = gradients.shared.average_in_place().current;
    result.found_inf = !std::isfinite(squares) || result.found_inf;
    gradients.shared.scale_averages(inverse.item<float>());
    result.has_gradients = result.has_gradients || gradients.shared.hold_gradients();
  }
  return result;
}

// What any rank found.
Findings agree(const ProcessGroup& group, const Findings& own) {
  const at::Tensor flags = at::empty({2}, at::kInt);
  flags[0].fill_(own.has_gradients ? 1 : 0);
  flags[1].fill_(own.found_inf ? 1 : 0);
  const at::Tensor on_device = flags.to(group.device());
  group.all_reduce(on_device, {.op = ReduceOp::kMax});
  const at::Tensor all = on_device.to(at::kCPU);
  const auto* flag = all.const_data_ptr<int>();
  return {.has_gradients = flag[0] != 0, .found_inf = flag[1] != 0};
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), growth_tracker_(scalar(0, at::kInt)) {
  check_scale("init_scale", options.init_scale);
  check_factors(options);
  scale_ = scalar(options.init_scale, at::kFloat);
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) return outputs;
  has_scaled_ = true;
  return outputs * scale_;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (!has_scaled_) {
    throw UsageError(
        "GradScaler: unscale_ or step before scale(); call scale(loss).backward() first");
  }
  OptimizerState& state = states_[&optimizer];
  if (state.stage == Stage::kUnscaled) {
    throw UsageError(
        "GradScaler: unscale_ was called on this optimizer since the last update() already; call "
        "it once, before step()");
  }
  if (state.stage == Stage::kStepped) {
    throw UsageError("GradScaler: unscale_ after step(); call update() between them");
  }
  const c10::NoGradGuard no_grad;
  Findings findings = unscale(gradients_of(optimizer), scale_);
  if (options_.process_group) findings = agree(options_.process_group, findings);
  if (!findings.has_gradients) {
    throw UsageError(
        "GradScaler: no parameter of the optimizer has a gradient; call scale(loss).backward() "
        "before unscale_ or step");
  }
  state = {.stage = Stage::kUnscaled, .found_inf = findings.found_inf};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    step_optimizer(optimizer);
    return true;
  }
  if (states_[&optimizer].stage == Stage::kStepped) {
    throw UsageError(
        "GradScaler: step was called on this optimizer since the last update() already; call "
        "update() at the end of each iteration");
  }
  if (states_[&optimizer].stage == Stage::kReady) unscale_(optimizer);
  OptimizerState& state = states_[&optimizer];
  state.stage = Stage::kStepped;
  if (!state.found_inf) step_optimizer(optimizer);
  return !state.found_inf;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check_scale("update: new_scale", *new_scale);
    scale_.fill_(*new_scale);
  } else {
    bool unscaled = false;
    bool found_inf = false;
    for (const auto& [optimizer, state] : states_) {
      unscaled = unscaled || state.stage != Stage::kReady;
      found_inf = found_inf || state.found_inf;
    }
    if (!unscaled) {
      throw UsageError("GradScaler: update without step() or unscale_() since the last update()");
    }
    at::_amp_update_scale_(scale_, growth_tracker_, scalar(found_inf ? 1 : 0, at::kFloat),
                           options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
    scale_.clamp_min_(Limits::min());  // below it, its inverse may be infinite
  }
  states_.clear();
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<double>() : 1;
}

std::int64_t GradScaler::get_growth_tracker() const {
  return options_.enabled ? growth_tracker_.item<std::int64_t>() : 0;
}

TensorDict GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  return {{kPrefix + "scale", scalar(get_scale(), at::kDouble)},
          {kPrefix + "growth_factor", scalar(options_.growth_factor, at::kDouble)},
          {kPrefix + "backoff_factor", scalar(options_.backoff_factor, at::kDouble)},
          {kPrefix + "growth_interval", at::empty({}, at::kLong).fill_(options_.growth_interval)},
          {kPrefix + "_growth_tracker", at::empty({}, at::kLong).fill_(get_growth_tracker())}};
}

void GradScaler::load_state_dict(const TensorDict& values) {
  if (!options_.enabled) return;
  const auto find = [&](const std::string& name) -> const at::Tensor& {
    for (const auto& [key, value] : values) {
      if (key == kPrefix + name) return value;
    }
    throw UsageError(concat("GradScaler: load_state_dict: there is no '", kPrefix, name,
                            "'; was it saved from a scaler that was enabled?"));
  };
  GradScalerOptions loaded = options_;
  loaded.init_scale = find("scale").item<double>();
  loaded.growth_factor = find("growth_factor").item<double>();
  loaded.backoff_factor = find("backoff_factor").item<double>();
  loaded.growth_interval = find("growth_interval").item<std::int64_t>();
  const auto growth_tracker = find("_growth_tracker").item<std::int64_t>();
  check_scale("load_state_dict: scale", loaded.init_scale);
  check_factors(loaded);
  options_ = loaded;
  scale_.fill_(loaded.init_scale);
  growth_tracker_.fill_(growth_tracker);
}

}  // namespace lockstep

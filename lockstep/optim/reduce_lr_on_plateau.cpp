#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ops/tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/internal/scheduler_state.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      min_lrs_(one_each("ReduceLROnPlateau", "min_lr", options.min_lr, optimizer)),
      last_lrs_(lrs_of(optimizer)) {
  require_range(options.factor < 1, "ReduceLROnPlateau", "factor", options.factor, "less than 1");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool is_min = options.mode == MonitorMode::kMin;
  counts_ = at::tensor({is_min ? kInfinity : -kInfinity, 0.0, 0.0, 0.0}, at::kDouble);
}
double& ReduceLROnPlateau::best() const {
  return counts_.mutable_data_ptr<double>()[0];
}
double& ReduceLROnPlateau::last_epoch() const {
  return counts_.mutable_data_ptr<double>()[1];
}
double& ReduceLROnPlateau::cooldown_counter() const {
  return counts_.mutable_data_ptr<double>()[2];
}
double& ReduceLROnPlateau::num_bad_epochs() const {
  return counts_.mutable_data_ptr<double>()[3];
}
bool ReduceLROnPlateau::is_better(double metric) const {
  using Options = ReduceLROnPlateauOptions;
  const bool is_relative = options_.threshold_mode == Options::ThresholdMode::kRel;
  if (options_.mode == MonitorMode::kMin) {
    return metric <
           (is_relative ? best() * (1.0 - options_.threshold) : best() - options_.threshold);
  }
  return metric > (is_relative ? best() * (options_.threshold + 1.0) : best() + options_.threshold);
}
void ReduceLROnPlateau::step(double metric) {
  last_epoch() += 1;
  if (is_better(metric)) {
    best() = metric;
    num_bad_epochs() = 0;
  } else {
    num_bad_epochs() += 1;
  }
  if (cooldown_counter() > 0) {
    cooldown_counter() -= 1;
    num_bad_epochs() = 0;
  }
  if (num_bad_epochs() > static_cast<double>(options_.patience)) {
    reduce();
    cooldown_counter() = static_cast<double>(options_.cooldown);
    num_bad_epochs() = 0;
  }
  last_lrs_ = lrs_of(*optimizer_);
}
void ReduceLROnPlateau::reduce() {
  auto& groups = optimizer_->param_groups();
  if (min_lrs_.size() != groups.size()) {
    min_lrs_ = one_each("ReduceLROnPlateau", "min_lr", options_.min_lr, *optimizer_);
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const double old_lr = groups[group].options().get_lr();
    const double new_lr = std::max(old_lr * options_.factor, min_lrs_[group]);
    if (old_lr - new_lr > options_.eps) groups[group].options().set_lr(new_lr);
  }
}
c10::IValue ReduceLROnPlateau::state_dict() const {
  const bool is_min = options_.mode == MonitorMode::kMin;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool is_relative = options_.threshold_mode == ReduceLROnPlateauOptions::ThresholdMode::kRel;
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("factor", options_.factor);
  dict.insert_or_assign("default_min_lr", options_.min_lr.size() == 1
                                              ? c10::IValue(options_.min_lr[0])
                                              : c10::IValue());
  dict.insert_or_assign("min_lrs", list_of(min_lrs_));
  dict.insert_or_assign("patience", options_.patience);
  dict.insert_or_assign("cooldown", options_.cooldown);
  dict.insert_or_assign("eps", options_.eps);
  dict.insert_or_assign("last_epoch", static_cast<std::int64_t>(last_epoch()));
  dict.insert_or_assign("_last_lr", list_of(last_lrs_));
  dict.insert_or_assign("mode_worse", is_min ? kInfinity : -kInfinity);
  dict.insert_or_assign("mode", is_min ? "min" : "max");
  dict.insert_or_assign("threshold", options_.threshold);
  dict.insert_or_assign("threshold_mode", is_relative ? "rel" : "abs");
  dict.insert_or_assign("best", best());
  dict.insert_or_assign("cooldown_counter", static_cast<std::int64_t>(cooldown_counter()));
  dict.insert_or_assign("num_bad_epochs", static_cast<std::int64_t>(num_bad_epochs()));
  return dict;
}
void ReduceLROnPlateau::load_state_dict(const c10::IValue& values) {
  using Options = ReduceLROnPlateauOptions;
  const auto number = [&](const char* name) {
    return to_number(entry(values, name, kLoadScheduler), name);
  };
  const auto is_text = [&](const char* name, const char* first, const char* second) {
    const c10::IValue value = entry(values, name, kLoadScheduler);
    if (!value.isString() || (value.toStringRef() != first && value.toStringRef() != second)) {
      throw UsageError(
          concat(kLoadScheduler, ": '", name, "' is neither '", first, "' nor '", second, "'"));
    }
    return value.toStringRef() == first;
  };
  Options options = options_;
  options.factor = number("factor");
  require_option(
      options.factor < 1, "ReduceLROnPlateau",
      concat("the state that is loaded has factor=", options.factor, "; it must be less than 1"));
  options.patience = to_integer(entry(values, "patience", kLoadScheduler), "patience");
  options.cooldown = to_integer(entry(values, "cooldown", kLoadScheduler), "cooldown");
  options.eps = number("eps");
  options.threshold = number("threshold");
  options.mode = is_text("mode", "min", "max") ? MonitorMode::kMin : MonitorMode::kMax;
  options.threshold_mode = is_text("threshold_mode", "rel", "abs") ? Options::ThresholdMode::kRel
                                                                   : Options::ThresholdMode::kAbs;
  std::vector<double> min_lrs = numbers_of(values, "min_lrs");
  options.min_lr = find_value(values, "default_min_lr").isNone()
                       ? min_lrs
                       : std::vector<double>{number("default_min_lr")};
  std::vector<double> last_lrs = numbers_of(values, "_last_lr");
  const double counts[] = {number("best"), number("last_epoch"), number("cooldown_counter"),
                           number("num_bad_epochs")};
  options_ = std::move(options);
  min_lrs_ = std::move(min_lrs);
  last_lrs_ = std::move(last_lrs);
  std::ranges::copy(counts, counts_.mutable_data_ptr<double>());
}

}  // namespace lockstep

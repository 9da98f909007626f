#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/optim/internal/scheduler_state.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/snapshot/internal/optimizer_description.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

/// The momentum of a group's options, or the first of its betas.
class Momentum {
 public:
  explicit Momentum(OptimizerOptions& options) {
    if (auto* const own = dynamic_cast<DescribedOptions*>(&options)) {
      for (std::size_t i = 0; i < own->values.size(); ++i) {
        const std::string_view name = own->description->options[i].first;
        if (name == "momentum") number_ = &std::get<double>(own->values[i]);
        if (name == "betas") betas_ = &std::get<std::tuple<double, double>>(own->values[i]);
      }
    } else if (auto* const sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
      number_ = &sgd->momentum();
    } else if (auto* const rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
      number_ = &rmsprop->momentum();
    } else if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
      betas_ = &adam->betas();
    } else if (auto* const adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
      betas_ = &adamw->betas();
    }
  }
  bool exists() const { return number_ != nullptr || betas_ != nullptr; }
  bool is_beta() const { return betas_ != nullptr; }
  void set(double value) const {
    if (betas_ != nullptr) {
      std::get<0>(*betas_) = value;
    } else {
      *number_ = value;
    }
  }

 private:
  double* number_ = nullptr;
  std::tuple<double, double>* betas_ = nullptr;
};

}  // namespace

std::vector<OneCycleLR::Phase> OneCycleLR::phases_of(bool three_phase) {
  if (three_phase) {
    return {{0, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
            {0, "max_lr", "initial_lr", "base_momentum", "max_momentum"},
            {0, "initial_lr", "min_lr", "max_momentum", "max_momentum"}};
  }
  return {{0, "initial_lr", "max_lr", "max_momentum", "base_momentum"},
          {0, "max_lr", "min_lr", "base_momentum", "max_momentum"}};
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(optimizer),
      phases_(phases_of(options.three_phase)),
      total_steps_(options.total_steps),
      strategy_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum) {
  require_range(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleLR", "pct_start",
                options.pct_start, "0 to 1");
  const auto steps = static_cast<double>(total_steps_);
  phases_[0].end_step = options.pct_start * steps - 1;
  if (options.three_phase) phases_[1].end_step = 2 * options.pct_start * steps - 2;
  phases_.back().end_step = steps - 1;
  pct_start_ = options.pct_start;
  OneCycleLR::check_options();
  const std::vector<double> max_lrs = one_each("OneCycleLR", "max_lr", options.max_lr, optimizer);
  if (cycle_momentum_) use_beta1_ = Momentum(optimizer.param_groups()[0].options()).is_beta();
  for (std::size_t group = 0; group < max_lrs.size(); ++group) {
    const double initial = max_lrs[group] / options.div_factor;
    set_group_value(group, "initial_lr", initial);
    set_group_value(group, "max_lr", max_lrs[group]);
    set_group_value(group, "min_lr", initial / options.final_div_factor);
    base_lrs_[group] = initial;
    if (!cycle_momentum_) continue;
    set_group_value(group, "max_momentum", options.max_momentum);
    set_group_value(group, "base_momentum", options.base_momentum);
  }
  begin();
}
void OneCycleLR::check_options() const {
  require_range(total_steps_ > 0, "OneCycleLR", "total_steps", total_steps_, "at least 1");
  auto& groups = optimizer().param_groups();
  require_option(!cycle_momentum_ || (!groups.empty() && Momentum(groups[0].options()).exists()),
                 "OneCycleLR",
                 "the optimizer has neither momentum nor betas; set cycle_momentum = false");
  // Python divides by the length of the phase that a step falls in.
  const std::size_t last = phases_.size() - 1;
  require_option(
      phases_[0].end_step != 0 && phases_[last].end_step != phases_[last - 1].end_step,
      "OneCycleLR",
      concat(pct_start_ ? concat("pct_start=", *pct_start_, ", ") : "",
             "total_steps=", total_steps_,
             " give a phase of no steps; change one of them so that pct_start · total_steps "
             "is neither 1 nor ",
             phases_.size() == 3 ? "(total_steps + 1) / 2" : "total_steps"));
}
std::vector<LRScheduler::Field> OneCycleLR::fields() {
  std::vector<Field> all = {{"total_steps", &total_steps_}, {"cycle_momentum", &cycle_momentum_}};
  if (cycle_momentum_) all.emplace_back("use_beta1", &use_beta1_);
  return all;
}
double OneCycleLR::first_lr(std::size_t group, double) {
  return restart_lr(group);
}
double OneCycleLR::restart_lr(std::size_t group) {
  return next_lr(group, 0, 0);
}
double OneCycleLR::anneal(double start, double end, double share) const {
  if (strategy_ == AnnealStrategy::kLinear) return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
}
double OneCycleLR::next_lr(std::size_t group, std::int64_t epoch, double) {
  if (epoch > total_steps_) {
    throw UsageError(concat("OneCycleLR::step: step ", epoch, " of ", total_steps_,
                            "; give the number of all steps as total_steps"));
  }
  const auto step = static_cast<double>(epoch);
  double start_step = 0;
  std::size_t i = 0;
  for (; i + 1 < phases_.size() && step > phases_[i].end_step; ++i) {
    start_step = phases_[i].end_step;
  }
  const Phase& phase = phases_[i];
  const double share = (step - start_step) / (phase.end_step - start_step);
  if (cycle_momentum_) {
    Momentum(optimizer().param_groups()[group].options())
        .set(anneal(group_value(group, phase.start_momentum),
                    group_value(group, phase.end_momentum), share));
  }
  return anneal(group_value(group, phase.start_lr), group_value(group, phase.end_lr), share);
}
c10::IValue OneCycleLR::state_dict() const {
  c10::impl::GenericDict dict = LRScheduler::state_dict().toGenericDict();
  c10::impl::GenericList phases = make_list();
  for (const Phase& phase : phases_) {
    c10::impl::GenericDict one = make_dict();
    one.insert_or_assign("end_step", phase.end_step);
    one.insert_or_assign("start_lr", phase.start_lr);
    one.insert_or_assign("end_lr", phase.end_lr);
    one.insert_or_assign("start_momentum", phase.start_momentum);
    one.insert_or_assign("end_momentum", phase.end_momentum);
    phases.push_back(one);
  }
  dict.insert_or_assign("_schedule_phases", phases);
  dict.insert_or_assign("_anneal_func_type", strategy_ == AnnealStrategy::kCos ? "cos" : "linear");
  return dict;
}
void OneCycleLR::load_state_dict(const c10::IValue& values) {
  const c10::IValue read = entry(values, "_schedule_phases", kLoadScheduler);
  const c10::IValue strategy = entry(values, "_anneal_func_type", kLoadScheduler);
  const std::size_t count = read.isList() ? read.toListRef().size() : 0;
  if ((count != 2 && count != 3) || !strategy.isString()) {
    throw UsageError(concat(kLoadScheduler, ": it is not of OneCycleLR"));
  }
  std::vector<Phase> phases = phases_of(count == 3);
  for (std::size_t i = 0; i < count; ++i) {
    phases[i].end_step =
        to_number(entry(read.toListRef()[i], "end_step", kLoadScheduler), "end_step");
    require_option(std::isfinite(phases[i].end_step), "OneCycleLR",
                   concat("the state that is loaded has end_step=", phases[i].end_step));
  }
  std::swap(phases_, phases);
  const std::optional<double> pct_start = std::exchange(pct_start_, std::nullopt);
  try {
    LRScheduler::load_state_dict(values);
  } catch (...) {
    phases_ = std::move(phases);
    pct_start_ = pct_start;
    throw;
  }
  strategy_ = strategy.toStringRef() == "cos" ? AnnealStrategy::kCos : AnnealStrategy::kLinear;
}

}  // namespace lockstep

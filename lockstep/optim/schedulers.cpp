#include "lockstep/optim/schedulers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/mutex.h"
#include "lockstep/optim/internal/scheduler_state.h"
#include "lockstep/snapshot/internal/optimizer_description.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

constexpr double kPi = std::numbers::pi;

/// What PyTorch's schedulers have in their state beside what all have.
constexpr const char* kFieldsOfSchedulers[] = {"T_0",          "T_max",
                                               "T_mult",       "_anneal_func_type",
                                               "_milestones",  "_schedule_phases",
                                               "_schedulers",  "end_factor",
                                               "eta_min",      "factor",
                                               "gamma",        "lr_lambdas",
                                               "milestones",   "power",
                                               "start_factor", "step_size",
                                               "total_iters",  "total_steps"};

}  // namespace

/// LibTorch's optimizers have no place for these numbers: they are kept here while the optimizer
/// has a scheduler.
struct LRScheduler::GroupValues {
  std::vector<std::map<std::string, double>> of_group;

  static std::shared_ptr<GroupValues> of(const Optimizer& optimizer) {
    static Mutex mutex;
    static std::unordered_map<const Optimizer*, std::weak_ptr<GroupValues>> all LOCKSTEP_GUARDED_BY(
        mutex);
    const MutexLock lock(mutex);
    std::erase_if(all, [](const auto& one) { return one.second.expired(); });
    std::shared_ptr<GroupValues> values = all[&optimizer].lock();
    if (!values) all[&optimizer] = values = std::make_shared<GroupValues>();
    return values;
  }

  std::map<std::string, double>& in(Optimizer& optimizer, std::size_t group) {
    OptimizerOptions& options = optimizer.param_groups().at(group).options();
    if (auto* const own = dynamic_cast<DescribedOptions*>(&options)) return own->scheduler_values;
    if (of_group.size() <= group) of_group.resize(group + 1);
    return of_group[group];
  }
};

LRScheduler::LRScheduler(Optimizer& optimizer)
    : torch::optim::LRScheduler(optimizer),
      optimizer_(&optimizer),
      group_values_(GroupValues::of(optimizer)) {
  const std::vector<double> lrs = lrs_of(optimizer);
  for (std::size_t group = 0; group < lrs.size(); ++group) {
    auto& values = group_values_->in(optimizer, group);
    base_lrs_.push_back(values.try_emplace("initial_lr", lrs[group]).first->second);
  }
}

double LRScheduler::base_lr(std::size_t group) const {
  if (group < base_lrs_.size()) return base_lrs_[group];
  throw UsageError(concat("LRScheduler::step: parameter group ", group,
                          " was added after the scheduler was made; make the scheduler after it"));
}

double LRScheduler::group_value(std::size_t group, const char* name) const {
  const auto& values = group_values_->in(*optimizer_, group);
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  throw UsageError(concat("LRScheduler::step: parameter group ", group, " has no '", name,
                          "': it was added, or its optimizer's state loaded, after the scheduler "
                          "was made; make the scheduler after that"));
}

void LRScheduler::set_group_value(std::size_t group, const char* name, double value) {
  group_values_->in(*optimizer_, group)[name] = value;
}

std::vector<double> LRScheduler::set_lrs(std::vector<double> lrs) {
  for (std::size_t group = 0; group < lrs.size(); ++group) {
    optimizer_->param_groups()[group].options().set_lr(lrs[group]);
  }
  last_lrs_ = lrs;
  return lrs;
}

void LRScheduler::begin() {
  step_count_ = 0;
  std::vector<double> lrs = lrs_of(*optimizer_);
  for (std::size_t group = 0; group < lrs.size(); ++group) lrs[group] = first_lr(group, lrs[group]);
  set_lrs(std::move(lrs));
}

std::vector<double> LRScheduler::get_lrs() {
  std::vector<double> lrs = lrs_of(*optimizer_);
  const std::int64_t epoch = last_epoch() + 1;
  for (std::size_t group = 0; group < lrs.size(); ++group) {
    lrs[group] = next_lr(group, epoch, lrs[group]);
  }
  last_lrs_ = lrs;
  return lrs;
}

c10::IValue LRScheduler::state_dict() const {
  c10::impl::GenericDict dict = make_dict();
  for (const auto& [name, field] : const_cast<LRScheduler*>(this)->fields()) {
    const char* const key = name;
    std::visit([&](const auto* value) { dict.insert_or_assign(key, *value); }, field);
  }
  dict.insert_or_assign("base_lrs", list_of(base_lrs_));
  dict.insert_or_assign("last_epoch", last_epoch());
  dict.insert_or_assign("_step_count", last_epoch() + 1);
  dict.insert_or_assign("_is_initial", false);
  dict.insert_or_assign("_get_lr_called_within_step", false);
  dict.insert_or_assign("_last_lr", list_of(last_lrs_));
  return dict;
}

void LRScheduler::load_state_dict(const c10::IValue& values) {
  refuse_another_scheduler(values);
  const std::vector<double> base_lrs = numbers_of(values, "base_lrs");
  const std::vector<double> last_lrs = numbers_of(values, "_last_lr");
  const std::size_t groups = base_lrs_.size();
  if (base_lrs.size() != groups || last_lrs.size() < groups) {
    throw UsageError(concat(kLoadScheduler, ": it has ", base_lrs.size(),
                            " parameter groups, this one ", groups,
                            "; load the state of the same scheduler, made after all groups "
                            "were added"));
  }
  const std::int64_t epoch = epoch_in(values);
  load_fields(values);
  base_lrs_ = base_lrs;
  last_lrs_ = last_lrs;
  step_count_ = static_cast<unsigned>(epoch);
}

void LRScheduler::refuse_another_scheduler(const c10::IValue& values) const {
  if (!values.isGenericDict()) return;  // Said by who looks for an entry.
  const c10::impl::GenericDict own = state_dict().toGenericDict();
  for (const char* const name : kFieldsOfSchedulers) {
    if (own.contains(name) || !values.toGenericDict().contains(name)) continue;
    throw UsageError(concat(kLoadScheduler, ": it has '", name,
                            "', which is another scheduler's; load "
                            "the state of the same scheduler"));
  }
}

void LRScheduler::load_fields(const c10::IValue& values) {
  using Value = std::variant<double, std::int64_t, bool>;
  const std::vector<Field> targets = fields();
  std::vector<Value> read;
  for (const auto& [name, field] : targets) {
    const c10::IValue value = entry(values, name, kLoadScheduler);
    if (std::holds_alternative<double*>(field)) {
      read.emplace_back(to_number(value, name));
    } else if (std::holds_alternative<std::int64_t*>(field)) {
      read.emplace_back(to_integer(value, name));
    } else if (value.isBool()) {
      read.emplace_back(value.toBool());
    } else {
      throw UsageError(concat(kLoadScheduler, ": '", name, "' is neither True nor False"));
    }
  }
  const auto exchange = [&] {
    for (std::size_t i = 0; i < targets.size(); ++i) {
      std::visit(
          [&](auto* target) {
            std::swap(*target, std::get<std::remove_pointer_t<decltype(target)>>(read[i]));
          },
          targets[i].second);
    }
  };
  exchange();
  try {
    check_options();
  } catch (...) {
    exchange();
    throw;
  }
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  StepLR::check_options();
  begin();
}
void StepLR::check_options() const {
  require_range(options_.step_size > 0, "StepLR", "step_size", options_.step_size, "at least 1");
}
std::vector<LRScheduler::Field> StepLR::fields() {
  return {{"step_size", &options_.step_size}, {"gamma", &options_.gamma}};
}
double StepLR::first_lr(std::size_t, double lr) {
  return lr;
}
double StepLR::next_lr(std::size_t, std::int64_t epoch, double lr) {
  return epoch % options_.step_size == 0 ? lr * options_.gamma : lr;
}
double StepLR::restart_lr(std::size_t group) {
  return base_lr(group);
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  begin();
}
std::vector<LRScheduler::Field> MultiStepLR::fields() {
  return {{"gamma", &options_.gamma}};
}
double MultiStepLR::first_lr(std::size_t group, double lr) {
  return next_lr(group, 0, lr);
}
double MultiStepLR::next_lr(std::size_t, std::int64_t epoch, double lr) {
  const auto times = std::ranges::count(options_.milestones, epoch);
  return times == 0 ? lr : lr * std::pow(options_.gamma, static_cast<double>(times));
}
double MultiStepLR::restart_lr(std::size_t group) {
  const auto passed = std::ranges::count_if(options_.milestones,
                                            [](std::int64_t milestone) { return milestone <= 0; });
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(passed));
}
c10::IValue MultiStepLR::state_dict() const {
  c10::impl::GenericDict dict = LRScheduler::state_dict().toGenericDict();
  c10::impl::GenericDict milestones = make_dict();
  for (const std::int64_t milestone : options_.milestones) {
    milestones.insert_or_assign(
        milestone, static_cast<std::int64_t>(std::ranges::count(options_.milestones, milestone)));
  }
  dict.insert_or_assign("milestones", milestones);
  return dict;
}
void MultiStepLR::load_state_dict(const c10::IValue& values) {
  const c10::IValue read = entry(values, "milestones", kLoadScheduler);
  if (!read.isGenericDict()) throw UsageError(concat(kLoadScheduler, ": 'milestones' is no dict"));
  std::vector<std::int64_t> milestones;
  for (const auto& item : read.toGenericDict()) {
    if (!item.key().isInt() || !item.value().isInt()) {
      throw UsageError(concat(kLoadScheduler, ": 'milestones' holds something else than integers"));
    }
    // Steps are below 2^31, and programs name fewer milestones than these.
    constexpr std::int64_t kMost = 1'000'000;
    const std::int64_t count = item.value().toInt();
    if (count < 0 || count > kMost - static_cast<std::int64_t>(milestones.size())) {
      throw UsageError(concat(kLoadScheduler, ": 'milestones' has ", item.key().toInt(), " ", count,
                              " times; it must be at least 0, and at most ", kMost, " in all"));
    }
    milestones.insert(milestones.end(), static_cast<std::size_t>(count), item.key().toInt());
  }
  LRScheduler::load_state_dict(values);
  options_.milestones = std::move(milestones);
}

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  ConstantLR::check_options();
  begin();
}
void ConstantLR::check_options() const {
  require_range(options_.factor > 0 && options_.factor <= 1, "ConstantLR", "factor",
                options_.factor, "above 0, at most 1");
}
std::vector<LRScheduler::Field> ConstantLR::fields() {
  return {{"factor", &options_.factor}, {"total_iters", &options_.total_iters}};
}
double ConstantLR::first_lr(std::size_t, double lr) {
  return lr * options_.factor;
}
double ConstantLR::next_lr(std::size_t, std::int64_t epoch, double lr) {
  return epoch == options_.total_iters ? lr * (1.0 / options_.factor) : lr;
}
double ConstantLR::restart_lr(std::size_t group) {
  const double is_over = 0 >= options_.total_iters ? 1 : 0;
  return base_lr(group) * (options_.factor + is_over * (1 - options_.factor));
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  LinearLR::check_options();
  begin();
}
void LinearLR::check_options() const {
  require_range(options_.start_factor > 0 && options_.start_factor <= 1, "LinearLR", "start_factor",
                options_.start_factor, "above 0, at most 1");
  require_range(options_.end_factor >= 0 && options_.end_factor <= 1, "LinearLR", "end_factor",
                options_.end_factor, "0 to 1");
  require_range(options_.total_iters > 0, "LinearLR", "total_iters", options_.total_iters,
                "at least 1");
}
std::vector<LRScheduler::Field> LinearLR::fields() {
  return {{"start_factor", &options_.start_factor},
          {"end_factor", &options_.end_factor},
          {"total_iters", &options_.total_iters}};
}
double LinearLR::first_lr(std::size_t, double lr) {
  return lr * options_.start_factor;
}
double LinearLR::next_lr(std::size_t, std::int64_t epoch, double lr) {
  if (epoch > options_.total_iters) return lr;
  const double difference = options_.end_factor - options_.start_factor;
  return lr *
         (1.0 + difference / (static_cast<double>(options_.total_iters) * options_.start_factor +
                              static_cast<double>(epoch - 1) * difference));
}
double LinearLR::restart_lr(std::size_t group) {
  return base_lr(group) * options_.start_factor;
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  begin();
}
std::vector<LRScheduler::Field> ExponentialLR::fields() {
  return {{"gamma", &options_.gamma}};
}
double ExponentialLR::first_lr(std::size_t, double lr) {
  return lr;
}
double ExponentialLR::next_lr(std::size_t, std::int64_t, double lr) {
  return lr * options_.gamma;
}
double ExponentialLR::restart_lr(std::size_t group) {
  return base_lr(group);
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  PolynomialLR::check_options();
  begin();
}
void PolynomialLR::check_options() const {
  require_range(options_.total_iters > 0, "PolynomialLR", "total_iters", options_.total_iters,
                "at least 1");
}
std::vector<LRScheduler::Field> PolynomialLR::fields() {
  return {{"total_iters", &options_.total_iters}, {"power", &options_.power}};
}
double PolynomialLR::first_lr(std::size_t, double lr) {
  return lr;
}
double PolynomialLR::next_lr(std::size_t, std::int64_t epoch, double lr) {
  if (epoch > options_.total_iters) return lr;
  const auto total = static_cast<double>(options_.total_iters);
  const double decay =
      (1.0 - static_cast<double>(epoch) / total) / (1.0 - static_cast<double>(epoch - 1) / total);
  return lr * std::pow(decay, options_.power);
}
double PolynomialLR::restart_lr(std::size_t group) {
  return base_lr(group);
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  CosineAnnealingLR::check_options();
  begin();
}
void CosineAnnealingLR::check_options() const {
  require_range(options_.t_max > 0, "CosineAnnealingLR", "t_max", options_.t_max, "at least 1");
}
std::vector<LRScheduler::Field> CosineAnnealingLR::fields() {
  return {{"T_max", &options_.t_max}, {"eta_min", &options_.eta_min}};
}
double CosineAnnealingLR::first_lr(std::size_t, double lr) {
  return lr;
}
double CosineAnnealingLR::next_lr(std::size_t group, std::int64_t epoch, double lr) {
  const auto t_max = static_cast<double>(options_.t_max);
  const double eta_min = options_.eta_min;
  if ((epoch - 1 - options_.t_max) % (2 * options_.t_max) == 0) {
    return lr + (base_lr(group) - eta_min) * (1 - std::cos(kPi / t_max)) / 2;
  }
  return (1 + std::cos(kPi * static_cast<double>(epoch) / t_max)) /
             (1 + std::cos(kPi * static_cast<double>(epoch - 1) / t_max)) * (lr - eta_min) +
         eta_min;
}
double CosineAnnealingLR::restart_lr(std::size_t group) {
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1 + std::cos(0.0)) / 2;
}

namespace {

/// Where a cosine with restarts is after so many steps: steps since the restart, steps of this
/// period.
std::pair<std::int64_t, std::int64_t> place_in_period(
    const CosineAnnealingWarmRestartsOptions& options, std::int64_t epoch) {
  if (options.t_mult == 1) return {epoch % options.t_0, options.t_0};
  std::int64_t period = options.t_0;
  for (; epoch >= period; period *= options.t_mult) epoch -= period;
  return {epoch, period};
}

}  // namespace

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(
    Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options)
    : LRScheduler(optimizer), options_(options) {
  CosineAnnealingWarmRestarts::check_options();
  begin();
}
void CosineAnnealingWarmRestarts::check_options() const {
  require_option(options_.t_0 > 0 && options_.t_mult > 0 &&
                     options_.t_mult <= std::numeric_limits<std::int32_t>::max(),
                 "CosineAnnealingWarmRestarts",
                 concat("t_0=", options_.t_0, ", t_mult=", options_.t_mult,
                        " is out of range; both must be at least 1, t_mult below 2^31"));
}
std::vector<LRScheduler::Field> CosineAnnealingWarmRestarts::fields() {
  return {{"T_0", &options_.t_0}, {"T_mult", &options_.t_mult}, {"eta_min", &options_.eta_min}};
}
double CosineAnnealingWarmRestarts::first_lr(std::size_t group, double) {
  return restart_lr(group);
}
double CosineAnnealingWarmRestarts::next_lr(std::size_t group, std::int64_t epoch, double) {
  const auto [steps, period] = place_in_period(options_, epoch);
  const double share = kPi * static_cast<double>(steps) / static_cast<double>(period);
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1 + std::cos(share)) / 2;
}
double CosineAnnealingWarmRestarts::restart_lr(std::size_t group) {
  return next_lr(group, 0, 0);
}
c10::IValue CosineAnnealingWarmRestarts::state_dict() const {
  c10::impl::GenericDict dict = LRScheduler::state_dict().toGenericDict();
  const auto [steps, period] = place_in_period(options_, last_epoch());
  dict.insert_or_assign("T_cur", steps);
  dict.insert_or_assign("T_i", period);
  dict.insert_or_assign("_step_count", std::int64_t{0});  // Python does not count here.
  return dict;
}
void CosineAnnealingWarmRestarts::load_state_dict(const c10::IValue& values) {
  const double saved = to_number(entry(values, "T_cur", kLoadScheduler), "T_cur");
  const CosineAnnealingWarmRestartsOptions current = options_;
  load_fields(values);
  const auto place = static_cast<double>(place_in_period(options_, epoch_in(values)).first);
  try {
    require_option(
        saved == place, "CosineAnnealingWarmRestarts",
        concat("the state that is loaded is of T_cur=", saved, ", of whole steps it is ", place,
               "; save it where Python's step() was called without a fraction of an epoch"));
    LRScheduler::load_state_dict(values);
  } catch (...) {
    options_ = current;
    throw;
  }
}

}  // namespace lockstep

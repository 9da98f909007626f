#include "lockstep/optim/schedulers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <ATen/ops/tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/internal/optimizer_description.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

constexpr const char* kLoading = "load a scheduler's state";
constexpr double kPi = std::numbers::pi;

void require(bool is_met, const char* scheduler, const std::string& what) {
  if (!is_met) throw UsageError(concat(scheduler, ": ", what));
}

c10::IValue list_of(const std::vector<double>& numbers) {
  c10::impl::GenericList list = make_list();
  for (const double number : numbers) list.push_back(number);
  return list;
}

c10::IValue list_of(const std::vector<std::int64_t>& numbers) {
  c10::impl::GenericList list = make_list();
  for (const std::int64_t number : numbers) list.push_back(number);
  return list;
}

double to_number(const c10::IValue& value, const std::string& name) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  throw UsageError(
      concat(kLoading, ": '", name, "' is no number; load the state of the same ", "scheduler"));
}

/// A whole number, which Python may keep as a float.
std::int64_t to_integer(const c10::IValue& value, const std::string& name) {
  const double number = to_number(value, name);
  if (std::nearbyint(number) == number && std::abs(number) < 0x1p53) {
    return static_cast<std::int64_t>(number);
  }
  throw UsageError(concat(kLoading, ": '", name, "' is ", number,
                          ", no whole number; load the state of the same scheduler"));
}

std::int64_t epoch_in(const c10::IValue& dict) {
  const std::int64_t epoch = integer_entry(dict, "last_epoch", kLoading);
  if (epoch > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError(concat(kLoading, ": 'last_epoch' is ", epoch, "; it must be below 2^31"));
  }
  return std::max<std::int64_t>(epoch, 0);
}

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

std::vector<double> numbers_of(const c10::IValue& dict, const char* name) {
  const c10::IValue value = entry(dict, name, kLoading);
  if (!value.isList()) throw UsageError(concat(kLoading, ": '", name, "' is no list"));
  std::vector<double> numbers;
  for (const c10::IValue& one : value.toListRef()) numbers.push_back(to_number(one, name));
  return numbers;
}

std::vector<double> lrs_of(const Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

std::vector<double> one_each(const char* scheduler, const char* name, std::vector<double> given,
                             const Optimizer& optimizer) {
  const std::size_t groups = optimizer.param_groups().size();
  if (given.size() == 1) given.resize(groups, given[0]);
  require(given.size() == groups, scheduler,
          concat(name, " has ", given.size(), " values, the optimizer ", groups,
                 " parameter groups; give one, or one for each"));
  return given;
}

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

/// LibTorch's optimizers have no place for these numbers: they are kept here while the optimizer
/// has a scheduler.
struct LRScheduler::GroupValues {
  std::vector<std::map<std::string, double>> of_group;

  static std::shared_ptr<GroupValues> of(const Optimizer& optimizer) {
    static std::mutex mutex;
    static std::unordered_map<const Optimizer*, std::weak_ptr<GroupValues>> all;
    const std::lock_guard lock(mutex);
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
    throw UsageError(concat(kLoading, ": it has ", base_lrs.size(), " parameter groups, this one ",
                            groups,
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
    throw UsageError(concat(kLoading, ": it has '", name,
                            "', which is another scheduler's; load "
                            "the state of the same scheduler"));
  }
}

void LRScheduler::load_fields(const c10::IValue& values) {
  using Value = std::variant<double, std::int64_t, bool>;
  const std::vector<Field> targets = fields();
  std::vector<Value> read;
  for (const auto& [name, field] : targets) {
    const c10::IValue value = entry(values, name, kLoading);
    if (std::holds_alternative<double*>(field)) {
      read.emplace_back(to_number(value, name));
    } else if (std::holds_alternative<std::int64_t*>(field)) {
      read.emplace_back(to_integer(value, name));
    } else if (value.isBool()) {
      read.emplace_back(value.toBool());
    } else {
      throw UsageError(concat(kLoading, ": '", name, "' is neither True nor False"));
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
  require(options_.step_size > 0, "StepLR",
          concat("step_size=", options_.step_size, " is out of range; it must be at least 1"));
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
  const c10::IValue read = entry(values, "milestones", kLoading);
  if (!read.isGenericDict()) throw UsageError(concat(kLoading, ": 'milestones' is no dict"));
  std::vector<std::int64_t> milestones;
  for (const auto& item : read.toGenericDict()) {
    if (!item.key().isInt() || !item.value().isInt()) {
      throw UsageError(concat(kLoading, ": 'milestones' holds something else than integers"));
    }
    // Steps are below 2^31, and programs name fewer milestones than these.
    constexpr std::int64_t kMost = 1'000'000;
    const std::int64_t count = item.value().toInt();
    if (count < 0 || count > kMost - static_cast<std::int64_t>(milestones.size())) {
      throw UsageError(concat(kLoading, ": 'milestones' has ", item.key().toInt(), " ", count,
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
  require(options_.factor > 0 && options_.factor <= 1, "ConstantLR",
          concat("factor=", options_.factor, " is out of range; it must be above 0, at most 1"));
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
  require(options_.start_factor > 0 && options_.start_factor <= 1, "LinearLR",
          concat("start_factor=", options_.start_factor,
                 " is out of range; it must be above 0, at most 1"));
  require(options_.end_factor >= 0 && options_.end_factor <= 1, "LinearLR",
          concat("end_factor=", options_.end_factor, " is out of range; it must be 0 to 1"));
  require(options_.total_iters > 0, "LinearLR",
          concat("total_iters=", options_.total_iters, " is out of range; it must be at least 1"));
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
  require(options_.total_iters > 0, "PolynomialLR",
          concat("total_iters=", options_.total_iters, " is out of range; it must be at least 1"));
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
  require(options_.t_max > 0, "CosineAnnealingLR",
          concat("t_max=", options_.t_max, " is out of range; it must be at least 1"));
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
  require(options_.t_0 > 0 && options_.t_mult > 0 &&
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
  const double saved = to_number(entry(values, "T_cur", kLoading), "T_cur");
  const CosineAnnealingWarmRestartsOptions current = options_;
  load_fields(values);
  const auto place = static_cast<double>(place_in_period(options_, epoch_in(values)).first);
  try {
    require(saved == place, "CosineAnnealingWarmRestarts",
            concat("the state that is loaded is of T_cur=", saved, ", of whole steps it is ", place,
                   "; save it where Python's step() was called without a fraction of an epoch"));
    LRScheduler::load_state_dict(values);
  } catch (...) {
    options_ = current;
    throw;
  }
}

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
  require(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleLR",
          concat("pct_start=", options.pct_start, " is out of range; it must be 0 to 1"));
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
  require(total_steps_ > 0, "OneCycleLR",
          concat("total_steps=", total_steps_, " is out of range; it must be at least 1"));
  auto& groups = optimizer().param_groups();
  require(!cycle_momentum_ || (!groups.empty() && Momentum(groups[0].options()).exists()),
          "OneCycleLR", "the optimizer has neither momentum nor betas; set cycle_momentum = false");
  // Python divides by the length of the phase that a step falls in.
  const std::size_t last = phases_.size() - 1;
  require(phases_[0].end_step != 0 && phases_[last].end_step != phases_[last - 1].end_step,
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
  return end + (start - end) / 2.0 * (std::cos(kPi * share) + 1);
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
  const c10::IValue read = entry(values, "_schedule_phases", kLoading);
  const c10::IValue strategy = entry(values, "_anneal_func_type", kLoading);
  const std::size_t count = read.isList() ? read.toListRef().size() : 0;
  if ((count != 2 && count != 3) || !strategy.isString()) {
    throw UsageError(concat(kLoading, ": it is not of OneCycleLR"));
  }
  std::vector<Phase> phases = phases_of(count == 3);
  for (std::size_t i = 0; i < count; ++i) {
    phases[i].end_step = to_number(entry(read.toListRef()[i], "end_step", kLoading), "end_step");
    require(std::isfinite(phases[i].end_step), "OneCycleLR",
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

SchedulerList::SchedulerList(const char* name, Optimizer& optimizer,
                             std::vector<std::shared_ptr<LRScheduler>> schedulers)
    : LRScheduler(optimizer), name_(name), schedulers_(std::move(schedulers)) {
  require(!schedulers_.empty(), name_, "there is no scheduler; give at least one");
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    require(schedulers_[i] != nullptr, name_, concat("scheduler ", i, " is null"));
    require(schedulers_[i]->optimizer_ == &optimizer, name_,
            concat("scheduler ", i, " is of another optimizer"));
    require(schedulers_[i]->step_count_ == 0, name_,
            concat("scheduler ", i, " has made steps already; make a new one"));
  }
}
// The schedulers do it.
double SchedulerList::first_lr(std::size_t, double lr) {
  return lr;
}
double SchedulerList::next_lr(std::size_t, std::int64_t, double lr) {
  return lr;
}
double SchedulerList::restart_lr(std::size_t group) {
  return base_lr(group);
}
void SchedulerList::begin_one(std::size_t i) {
  schedulers_[i]->begin();
}
void SchedulerList::restart_one(std::size_t i) {
  LRScheduler& scheduler = *schedulers_[i];
  scheduler.step_count_ = 0;
  std::vector<double> lrs = lrs_of(optimizer());
  for (std::size_t group = 0; group < lrs.size(); ++group) lrs[group] = scheduler.restart_lr(group);
  scheduler.set_lrs(std::move(lrs));
}
void SchedulerList::step_one(std::size_t i, std::int64_t epoch) {
  schedulers_[i]->step_count_ = static_cast<unsigned>(epoch - 1);
  schedulers_[i]->step();
}
std::vector<double> SchedulerList::finish_step() {
  last_lrs_ = lrs_of(optimizer());
  return last_lrs_;
}
c10::IValue SchedulerList::state_dict() const {
  c10::impl::GenericList all = make_list();
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    const std::int64_t epoch = epoch_of(i, last_epoch());
    // Accelerator and Trainer take this one's steps back, not theirs.
    schedulers_[i]->step_count_ = static_cast<unsigned>(std::max<std::int64_t>(epoch, 0));
    c10::impl::GenericDict one = schedulers_[i]->state_dict().toGenericDict();
    if (one.contains("last_epoch")) one.insert_or_assign("last_epoch", epoch);
    if (one.contains("_step_count") && one.at("_step_count").toInt() != 0) {
      one.insert_or_assign("_step_count", std::max<std::int64_t>(epoch, 0) + 1);
    }
    all.push_back(one);
  }
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("_last_lr", list_of(last_lrs_));
  dict.insert_or_assign("_schedulers", all);
  return dict;
}
void SchedulerList::load_state_dict(const c10::IValue& values) {
  const c10::IValue all = entry(values, "_schedulers", kLoading);
  if (!all.isList() || all.toListRef().size() != schedulers_.size()) {
    throw UsageError(
        concat(kLoading, ": it is not of a ", name_, " of ", schedulers_.size(), " schedulers"));
  }
  refuse_another_scheduler(values);
  std::vector<double> last_lrs = numbers_of(values, "_last_lr");
  std::vector<c10::IValue> before;
  for (const auto& scheduler : schedulers_) before.push_back(scheduler->state_dict());
  try {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) {
      schedulers_[i]->load_state_dict(all.toListRef()[i]);
    }
  } catch (...) {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->load_state_dict(before[i]);
    throw;
  }
  last_lrs_ = std::move(last_lrs);
  step_count_ = schedulers_[0]->step_count_;
}

SequentialLR::SequentialLR(Optimizer& optimizer,
                           std::vector<std::shared_ptr<LRScheduler>> schedulers,
                           std::vector<std::int64_t> milestones)
    : SchedulerList("SequentialLR", optimizer, schedulers), milestones_(std::move(milestones)) {
  require(milestones_.size() + 1 == schedulers.size(), "SequentialLR",
          concat("there are ", schedulers.size(), " schedulers and ", milestones_.size(),
                 " milestones; give one milestone fewer than schedulers"));
  require(std::ranges::is_sorted(milestones_), "SequentialLR", "milestones do not ascend");
  for (const auto& scheduler : schedulers) {
    require(dynamic_cast<const SchedulerList*>(scheduler.get()) == nullptr, "SequentialLR",
            "it takes no SequentialLR or ChainedScheduler; give their schedulers");
  }
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optimizer.param_groups()[group].options().set_lr(group_value(group, "initial_lr"));
  }
  begin_one(active_at(0));
  finish_step();
}
std::size_t SequentialLR::active_at(std::int64_t epoch) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(milestones_, epoch) -
                                  milestones_.begin());
}
std::vector<double> SequentialLR::get_lrs() {
  const std::int64_t epoch = last_epoch() + 1;
  const std::size_t active = active_at(epoch);
  if (active > 0 && start_of(active) == epoch) {
    restart_one(active);
  } else {
    step_one(active, epoch - start_of(active));
  }
  return finish_step();
}
std::int64_t SequentialLR::epoch_of(std::size_t i, std::int64_t epoch) const {
  const std::size_t active = active_at(epoch);
  if (i > active) return -1;
  // One that is over, or that another has replaced before it began.
  if (i < active) return std::max<std::int64_t>(start_of(i + 1) - start_of(i), 0) - 1;
  return epoch - start_of(i);
}
c10::IValue SequentialLR::state_dict() const {
  c10::impl::GenericDict dict = SchedulerList::state_dict().toGenericDict();
  dict.insert_or_assign("_milestones", list_of(milestones_));
  dict.insert_or_assign("last_epoch", last_epoch());
  return dict;
}
void SequentialLR::load_state_dict(const c10::IValue& values) {
  std::vector<std::int64_t> milestones;
  for (const double milestone : numbers_of(values, "_milestones")) {
    milestones.push_back(to_integer(milestone, "_milestones"));
  }
  require(std::ranges::is_sorted(milestones), "SequentialLR",
          "the milestones of the state that is loaded do not ascend");
  require(milestones.size() == milestones_.size(), "SequentialLR",
          "the state that is loaded has another number of milestones");
  const std::int64_t epoch = epoch_in(values);
  SchedulerList::load_state_dict(values);
  milestones_ = std::move(milestones);
  step_count_ = static_cast<unsigned>(epoch);
}

ChainedScheduler::ChainedScheduler(Optimizer& optimizer,
                                   std::vector<std::shared_ptr<LRScheduler>> schedulers)
    : SchedulerList("ChainedScheduler", optimizer, std::move(schedulers)) {
  finish_step();
}
std::vector<double> ChainedScheduler::get_lrs() {
  const std::int64_t epoch = last_epoch() + 1;
  for (std::size_t i = 0; i < size(); ++i) step_one(i, epoch);
  return finish_step();
}
std::int64_t ChainedScheduler::epoch_of(std::size_t, std::int64_t epoch) const {
  return epoch;
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      min_lrs_(one_each("ReduceLROnPlateau", "min_lr", options.min_lr, optimizer)),
      last_lrs_(lrs_of(optimizer)) {
  require(options.factor < 1, "ReduceLROnPlateau",
          concat("factor=", options.factor, " is out of range; it must be less than 1"));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool is_min = options.mode == ReduceLROnPlateauOptions::Mode::kMin;
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
  if (options_.mode == Options::Mode::kMin) {
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
  const bool is_min = options_.mode == ReduceLROnPlateauOptions::Mode::kMin;
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
    return to_number(entry(values, name, kLoading), name);
  };
  const auto is_text = [&](const char* name, const char* first, const char* second) {
    const c10::IValue value = entry(values, name, kLoading);
    if (!value.isString() || (value.toStringRef() != first && value.toStringRef() != second)) {
      throw UsageError(
          concat(kLoading, ": '", name, "' is neither '", first, "' nor '", second, "'"));
    }
    return value.toStringRef() == first;
  };
  Options options = options_;
  options.factor = number("factor");
  require(
      options.factor < 1, "ReduceLROnPlateau",
      concat("the state that is loaded has factor=", options.factor, "; it must be less than 1"));
  options.patience = to_integer(entry(values, "patience", kLoading), "patience");
  options.cooldown = to_integer(entry(values, "cooldown", kLoading), "cooldown");
  options.eps = number("eps");
  options.threshold = number("threshold");
  options.mode = is_text("mode", "min", "max") ? Options::Mode::kMin : Options::Mode::kMax;
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

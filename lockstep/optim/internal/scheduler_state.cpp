#include "lockstep/optim/internal/scheduler_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/snapshot/save.h"

namespace lockstep::inline internal {

void require_option(bool is_met, const char* scheduler, const std::string& what) {
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
  throw UsageError(concat(kLoadScheduler, ": '", name,
                          "' is no number; load the state of the same ", "scheduler"));
}

std::int64_t to_integer(const c10::IValue& value, const std::string& name) {
  const double number = to_number(value, name);
  if (std::nearbyint(number) == number && std::abs(number) < 0x1p53) {
    return static_cast<std::int64_t>(number);
  }
  throw UsageError(concat(kLoadScheduler, ": '", name, "' is ", number,
                          ", no whole number; load the state of the same scheduler"));
}

std::int64_t epoch_in(const c10::IValue& dict) {
  const std::int64_t epoch = integer_entry(dict, "last_epoch", kLoadScheduler);
  if (epoch > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError(
        concat(kLoadScheduler, ": 'last_epoch' is ", epoch, "; it must be below 2^31"));
  }
  return std::max<std::int64_t>(epoch, 0);
}

std::vector<double> numbers_of(const c10::IValue& dict, const char* name) {
  const c10::IValue value = entry(dict, name, kLoadScheduler);
  if (!value.isList()) throw UsageError(concat(kLoadScheduler, ": '", name, "' is no list"));
  std::vector<double> numbers;
  for (const c10::IValue& one : value.toListRef()) numbers.push_back(to_number(one, name));
  return numbers;
}

std::vector<double> lrs_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

std::vector<double> one_each(const char* scheduler, const char* name, std::vector<double> given,
                             const torch::optim::Optimizer& optimizer) {
  const std::size_t groups = optimizer.param_groups().size();
  if (given.size() == 1) given.resize(groups, given[0]);
  require_option(given.size() == groups, scheduler,
                 concat(name, " has ", given.size(), " values, the optimizer ", groups,
                        " parameter groups; give one, or one for each"));
  return given;
}

}  // namespace lockstep::inline internal

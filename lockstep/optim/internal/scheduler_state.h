#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/internal/concat.h"

/// Helpers of the schedulers: checks of options, and parsing of state dicts of Python's and
/// Lockstep's schedulers.
namespace lockstep::inline internal {

/// The operation in errors of loading a state.
inline constexpr const char* kLoadScheduler = "load a scheduler's state";

/// Errors: UsageError "<scheduler>: <what>" unless it is met.
void require_option(bool is_met, const char* scheduler, const std::string& what);

/// Errors: UsageError "<scheduler>: <option>=<value> is out of range; it must be <range>".
template <class Number>
void require_range(bool is_met, const char* scheduler, const char* option, Number value,
                   const char* range) {
  require_option(is_met, scheduler,
                 concat(option, "=", value, " is out of range; it must be ", range));
}

c10::IValue list_of(const std::vector<double>& numbers);
c10::IValue list_of(const std::vector<std::int64_t>& numbers);

/// Errors of these: UsageError, which names the entry.
double to_number(const c10::IValue& value, const std::string& name);
/// An integer, which Python may store as a float.
std::int64_t to_integer(const c10::IValue& value, const std::string& name);
std::vector<double> numbers_of(const c10::IValue& dict, const char* name);
/// Number of completed steps: 0 or more, below 2^31.
std::int64_t epoch_in(const c10::IValue& dict);

/// The learning rate of each parameter group.
std::vector<double> lrs_of(const torch::optim::Optimizer& optimizer);
/// One value per parameter group, from one for all or from one each.
/// Errors: UsageError for another number of values.
std::vector<double> one_each(const char* scheduler, const char* name, std::vector<double> given,
                             const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::inline internal

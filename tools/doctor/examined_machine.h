#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// A machine of several that are to do a job together.
struct ExaminedMachine {
  /// As whoever examines them calls it.
  std::string name{};
  /// Nothing where it could not be examined, because of `trouble`.
  std::optional<MachineFacts> facts{};
  std::string trouble{};
  /// Nothing where it has not told of its calls.
  std::optional<ReachReport> reach{};
};

/// The addresses at which others may call a machine: that which it would tell them comes first.
std::vector<std::string> addresses_for_others(const MachineFacts& facts);

/// What `machine` is to do to find out about the others. `ports`: at which they listen, by place.
ReachPlan reach_plan(const std::vector<ExaminedMachine>& machines, std::size_t machine,
                     const std::vector<std::uint16_t>& ports, const std::string& token);

}  // namespace lockstep::inline internal

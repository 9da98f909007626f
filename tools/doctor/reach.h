#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// One of several machines of a job.
struct ExaminedMachine {
  /// As the user names it.
  std::string name{};
  /// Nothing where it could not be examined, because of `trouble`.
  std::optional<MachineFacts> facts{};
  std::string trouble{};
  /// Nothing where it did not report its calls.
  std::optional<ReachReport> reach{};
};

/// Whom `machine` is to call. `ports`: at which each machine listens, by index.
ReachPlan reach_plan(const std::vector<ExaminedMachine>& machines, std::size_t machine,
                     const std::vector<std::uint16_t>& ports, const std::string& token);

/// Calls all other machines at all of their addresses, and answers their calls, until each has
/// answered and called or the deadline passes. Machines may begin at different times.
/// Errors: SystemError.
ReachReport reach(const ReachPlan& plan, const Deadline& deadline);

}  // namespace lockstep::inline internal

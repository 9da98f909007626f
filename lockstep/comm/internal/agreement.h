#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// The result of begin_agreed: all ranks have begun the same operation, and two numbers of each.
/// Copies refer to the same result.
class Agreement {
 public:
  using Numbers = std::array<double, 2>;

  Agreement() = default;

  /// Waits for all ranks. Returns their numbers in rank order; empty without numbers.
  /// Errors: UsageError on every rank if ranks have begun different operations, with both; else as
  /// Work::wait.
  const std::vector<Numbers>& get() const;

  struct State;
  explicit Agreement(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Announces that this rank begins `what` (at most 39 bytes), possibly with two numbers, without
/// waiting; Agreement::get waits. Once all ranks have begun, the caller may make calls that are
/// equal on all ranks without a check of each. If the backend checks calls itself, or calls are not
/// checked, only numbers are exchanged.
Agreement begin_agreed(const ProcessGroup& group, const std::string& what,
                       const std::optional<Agreement::Numbers>& numbers = std::nullopt);

/// Number of earlier calls for this group: equal on all ranks that make the same calls. Numbers
/// what is replicated over the group.
std::uint64_t count_replica(const ProcessGroup& group);

}  // namespace lockstep::inline internal

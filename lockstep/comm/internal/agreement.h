#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// That all ranks have begun the same, and two numbers of each: see begin_agreed.
/// A small value: copies refer to the same.
class Agreement {
 public:
  using Numbers = std::array<double, 2>;

  Agreement() = default;

  /// Waits for all ranks. Returns their numbers in rank order, or nothing where none were to be
  /// exchanged. Errors: UsageError on every rank that names both where ranks have begun different
  /// things; else as Work::wait.
  const std::vector<Numbers>& get() const;

  struct State;
  explicit Agreement(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// For callers that make calls which all ranks make alike, once they have all begun: tells the
/// others that this rank begins `what`, of up to 39 letters, and, where given, two numbers. Waits
/// for nobody; Agreement::get does. Where calls are compared by the backend itself, or not at
/// all, only numbers are exchanged, and nothing without them.
Agreement begin_agreed(const ProcessGroup& group, const std::string& what,
                       const std::optional<Agreement::Numbers>& numbers = std::nullopt);

/// How often it was called before for this group: the same on all ranks that make the same calls,
/// for numbering what is replicated over it.
std::uint64_t count_replica(const ProcessGroup& group);

}  // namespace lockstep::inline internal

#pragma once

#include <array>
#include <memory>
#include <vector>

namespace lockstep {

/// That all ranks have begun the same, and two numbers of each: see ProcessGroup::begin_agreed.
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

}  // namespace lockstep

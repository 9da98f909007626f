#pragma once

namespace lockstep::inline internal {

/// What the failure of a group brings about in groups that its ranks wait in, too.
/// Threads: any, one at a time.
class GroupFailure {
 public:
  GroupFailure() = default;
  virtual ~GroupFailure() = default;
  GroupFailure(const GroupFailure&) = delete;
  GroupFailure& operator=(const GroupFailure&) = delete;

  /// Call it in a catch block of the error of a collective. Rethrows that error, or what explains
  /// it.
  [[noreturn]] virtual void rethrow() = 0;
};

}  // namespace lockstep::inline internal

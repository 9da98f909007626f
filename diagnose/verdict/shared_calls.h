#pragma once

#include <string>
#include <vector>

#include "diagnose/capture/recent_calls.h"
#include "diagnose/verdict/crash_report.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/memory/memory_file.h"

namespace lockstep::inline internal {

/// "all_reduce number 1204 of group 'default' (bucket 2: fc.weight … fc.bias)"
std::string describe(const RecentCalls::Call& call);

/// A worker's last collectives, in memory that it has in common with the launcher: they can be read
/// whatever the worker does, and after its end.
class SharedCalls {
 public:
  SharedCalls() = default;
  /// `file` is what the worker has sent; what is no such memory, or another version's, holds none.
  explicit SharedCalls(const UniqueFd& file) noexcept;

  /// Null where there are none.
  RecentCalls* get() const;
  /// The newest first.
  std::vector<RecentCalls::Call> read() const;
  /// The same for people.
  std::vector<StartedCollective> describe_all() const;

 private:
  SharedMapping memory_;
};

}  // namespace lockstep::inline internal

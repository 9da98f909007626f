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

/// A worker's last collectives, in memory that it shares with the launcher: readable in any state
/// of the worker, and after its end.
class SharedCalls {
 public:
  SharedCalls() = default;
  /// `file`: sent by the worker. Empty if it is no such memory or of another version.
  explicit SharedCalls(const UniqueFd& file) noexcept;

  /// Null: none.
  RecentCalls* get() const;
  /// Newest first.
  std::vector<RecentCalls::Call> read() const;
  /// The same as text.
  std::vector<StartedCollective> describe_all() const;

 private:
  SharedMapping memory_;
};

}  // namespace lockstep::inline internal

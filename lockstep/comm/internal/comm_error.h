#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline internal {

enum class CommFailure { kTimeout, kPeerLost, kOther };

/// Classifies a failure by the text of Gloo, NCCL or c10d, which give no more.
CommFailure failure_of(std::string_view text);

/// Error of a backend that knows the cause but not the user's collective. The wait for the Work
/// rethrows it as TimeoutError, PeerLost or CommError, with the collective.
class UnnamedCommError : public std::runtime_error {
 public:
  /// `ranks`: as in ErrorFields.
  UnnamedCommError(CommFailure failure, const std::string& reason, std::vector<int> ranks = {})
      : std::runtime_error(reason), failure_(failure), ranks_(std::move(ranks)) {}
  CommFailure failure() const { return failure_; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  CommFailure failure_;
  std::vector<int> ranks_;
};

/// A wait ended before its work: the work continues and can be waited for again.
class WaitExpired : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::inline internal

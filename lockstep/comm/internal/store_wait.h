#pragma once

#include <functional>
#include <string>
#include <vector>

#include <c10/util/Logging.h>

#include "lockstep/base/internal/deadline.h"

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

/// Waits until the store has all keys or the deadline expires. Returns the indices of the missing
/// keys, ascending. Calls `on_wait`, if given, about every ten seconds with those missing so far.
std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               const Deadline& deadline,
                               const std::function<void(const std::vector<int>&)>& on_wait = {});

/// "1, 3, 7"; long lists end in "and 12 more".
std::string join_numbers(const std::vector<int>& numbers);

/// While it lives, c10d logs no warnings: Lockstep's own error reports a failure in one line, c10d
/// in a page of backtrace per socket. A lower log level that the user set is kept. With kErrors it
/// logs no errors either.
/// Threads: process-wide; use it while no other thread logs.
class QuietC10d {
 public:
  enum Silence { kWarnings = 2, kErrors = 3 };
  explicit QuietC10d(Silence silence = kWarnings) : before_(FLAGS_caffe2_log_level) {
    constexpr int kDefault = 1;
    if (before_ == kDefault) FLAGS_caffe2_log_level = silence;
  }
  ~QuietC10d() { FLAGS_caffe2_log_level = before_; }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  const int before_;
};

}  // namespace lockstep::inline internal

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

/// Waits until all keys are in the store or the deadline passes. Returns the indices of the keys
/// that are missing then, in order. `on_wait`, if given, is called about every ten seconds with
/// those that are missing so far, so that nobody waits in silence.
std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               const Deadline& deadline,
                               const std::function<void(const std::vector<int>&)>& on_wait = {});

/// "1, 3, 7"; long lists end in "and 12 more".
std::string join_numbers(const std::vector<int>& numbers);

/// While it lives, c10d keeps its warnings to itself: what fails is reported by our own error, in
/// one line, instead of a page of backtrace a socket. A level that the user lowered to see more
/// stays. With kErrors it keeps what it calls errors to itself too. Threads: set for the whole
/// process; use it where nothing else runs yet.
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

#pragma once

#include <c10/util/Logging.h>

namespace lockstep::inline internal {

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

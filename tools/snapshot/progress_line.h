#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::inline internal {

/// How far a command is that takes more than 2 s: one line that is written again, or, where
/// standard error is no terminal, a line each 10 s.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  struct Output {
    std::function<void(const std::string&)> write;
    bool is_terminal = false;
    std::function<Clock::time_point()> now = Clock::now;
  };

  /// To standard error.
  explicit ProgressLine(std::string what);
  ProgressLine(std::string what, Output output);
  /// Ends the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  std::string what_;
  Output output_;
  Clock::time_point begin_;
  Clock::time_point next_;
  bool is_shown_ = false;
};

}  // namespace lockstep::inline internal

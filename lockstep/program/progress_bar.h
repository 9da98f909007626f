#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

inline namespace internal {
struct Progress;
}

struct ProgressBarOptions {
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;
  /// Where a resumed run goes on.
  std::int64_t first_epoch = 0;
  /// Only rank 0 shows anything.
  int rank = 0;
  /// Off: only messages are shown.
  bool enabled = true;
  /// Standard error: standard output stays the program's own.
  int fd = 2;
};

/// Shows how far a training run is: one line drawn over and over on a terminal, a plain line now
/// and then elsewhere (a log file, a CI job). Colours unless NO_COLOR is set.
///
///   ProgressBar bar({.epochs = 20, .steps_per_epoch = 23, .rank = group.rank()});
///   …
///     bar.step_done(loss);                             // after each step
///   bar.epoch_done("epoch 1  accuracy 97.2 %");        // after each epoch
///
/// Threads: one. Errors: none; what the terminal does not take is lost.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(const ProgressBarOptions& options, Clock::time_point now = Clock::now());
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Counts one step. Draws at most ten times a second: cheap enough for any loop.
  void step_done(std::optional<double> loss = std::nullopt, Clock::time_point now = Clock::now());

  /// Ends the epoch and prints `summary`, a line that stays.
  void epoch_done(const std::string& summary, Clock::time_point now = Clock::now());

  /// Ends the epoch and takes the bar away until the next step, for a program that prints on its
  /// own.
  void epoch_done();

  /// Prints a line that stays, with the bar below it.
  void print(const std::string& message, Clock::time_point now = Clock::now());

 private:
  void draw(Clock::time_point now);
  void erase();
  void write_text(const std::string& text, std::chrono::milliseconds timeout) const;

  const ProgressBarOptions options_;
  const bool color_;
  const bool dumb_terminal_;
  const Clock::time_point start_;
  const std::unique_ptr<Progress> progress_;
  std::int64_t steps_ = 0;  ///< of this process: those before a resume say nothing of the speed
  std::optional<Clock::time_point> drawn_at_;
  bool bar_shown_ = false;
};

}  // namespace lockstep

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

/// Options of ProgressBar.
struct ProgressBarOptions {
  /// Epochs of the training run.
  std::int64_t epochs = 1;
  /// Steps of an epoch.
  std::int64_t steps_per_epoch = 1;
  /// First epoch of a resumed run.
  std::int64_t first_epoch = 0;
  /// Only rank 0 prints.
  int rank = 0;
  /// False: only messages are printed.
  bool enabled = true;
  /// File descriptor for output. Default: standard error, so that standard output stays the
  /// program's.
  int fd = 2;
};

/// Shows the progress of a training run: on a terminal one line that is redrawn; elsewhere (a log
/// file, CI) a line every 10 s. Colours unless NO_COLOR is set.
///
///     ProgressBar bar({.epochs = 20, .steps_per_epoch = 23, .rank = group.rank()});
///     …
///       bar.step_done(loss);                             // after each step
///     bar.epoch_done("epoch 1  accuracy 97.2 %");        // after each epoch
///
/// Threads: one at a time.
/// Errors: none; output that the terminal does not accept is lost.
class ProgressBar {
 public:
  /// Clock of the `now` arguments, which tests set.
  using Clock = std::chrono::steady_clock;

  explicit ProgressBar(const ProgressBarOptions& options, Clock::time_point now = Clock::now());
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Counts one step and shows its loss. Redraws at most ten times a second.
  void step_done(std::optional<double> loss = std::nullopt, Clock::time_point now = Clock::now());

  /// Ends the epoch and prints `summary` as a line of its own.
  void epoch_done(const std::string& summary, Clock::time_point now = Clock::now());

  /// Ends the epoch and erases the bar until the next step, for a program that prints by itself.
  void epoch_done();

  /// Prints a line above the bar.
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
  std::int64_t steps_ = 0;  ///< of this process, without those before a resume, for the speed
  std::optional<Clock::time_point> drawn_at_;
  bool bar_shown_ = false;
};

}  // namespace lockstep

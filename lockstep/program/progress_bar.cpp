#include "lockstep/program/progress_bar.h"

#include <string_view>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/machine/terminal.h"
#include "lockstep/program/internal/progress_line.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kDrawInterval(100);  // Faster than that, nobody can read it.
constexpr std::chrono::seconds kPlainInterval(10);       // Keeps logs short.
constexpr int kPlainColumns = 100;
constexpr std::string_view kEraseToEnd = "\x1b[K";
// A terminal that is stopped with Ctrl-S must not stop the training, nor slow it down: the bar is
// drawn if it takes no waiting, for a line that stays a moment is spent.
constexpr std::chrono::milliseconds kDrawTimeout(0);
constexpr std::chrono::milliseconds kMessageTimeout(100);

}  // namespace

ProgressBar::ProgressBar(const ProgressBarOptions& options, Clock::time_point now)
    : options_(options),
      color_(!env::text(env::kNoColor)),
      dumb_terminal_(env::text(env::kTerm) == "dumb"),
      start_(now),
      progress_(std::make_unique<Progress>()) {
  progress_->epoch = options.first_epoch;
  progress_->epochs = options.epochs;
  progress_->steps_per_epoch = options.steps_per_epoch;
}

ProgressBar::~ProgressBar() {
  erase();
}

void ProgressBar::step_done(std::optional<double> loss, Clock::time_point now) {
  ++progress_->step;
  ++steps_;
  if (loss) progress_->loss = loss;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds > 0) progress_->steps_per_second = static_cast<double>(steps_) / seconds;
  draw(now);
}

void ProgressBar::epoch_done(const std::string& summary, Clock::time_point now) {
  ++progress_->epoch;
  progress_->step = 0;
  print(summary, now);
}

void ProgressBar::epoch_done() {
  ++progress_->epoch;
  progress_->step = 0;
  erase();
}

void ProgressBar::print(const std::string& message, Clock::time_point now) {
  const bool bar_was_shown = bar_shown_;
  erase();
  write_text(message + "\n", kMessageTimeout);
  if (bar_was_shown) {
    drawn_at_.reset();
    draw(now);
  }
}

void ProgressBar::draw(Clock::time_point now) {
  if (!options_.enabled || options_.rank != 0) return;
  if (drawn_at_ && now - *drawn_at_ < kDrawInterval) return;
  // Asked each time that a line is due: the window may have been resized.
  const std::optional<int> columns = dumb_terminal_ ? std::nullopt : terminal_columns(options_.fd);
  if (columns) {
    // One column stays free: a full line would wrap on some terminals.
    const auto line = progress_line(*progress_, {.columns = *columns - 1, .color = color_});
    write_text("\r" + line + std::string(kEraseToEnd), kDrawTimeout);
    bar_shown_ = true;
  } else {
    if (now - drawn_at_.value_or(start_) < kPlainInterval) return;
    write_text(progress_line(*progress_, {.columns = kPlainColumns, .bar = false}) + "\n",
               kMessageTimeout);
  }
  drawn_at_ = now;
}

void ProgressBar::erase() {
  if (!bar_shown_) return;
  write_text("\r" + std::string(kEraseToEnd), kDrawTimeout);
  bar_shown_ = false;
}

void ProgressBar::write_text(const std::string& text, std::chrono::milliseconds timeout) const {
  if (options_.rank == 0) write_all(options_.fd, text, Deadline::after(timeout));
}

}  // namespace lockstep

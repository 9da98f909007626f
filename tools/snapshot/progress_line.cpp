#include "tools/snapshot/progress_line.h"

#include <cstdio>
#include <utility>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

constexpr std::chrono::seconds kFirst{2};
constexpr std::chrono::milliseconds kEachOnTerminal{200};
constexpr std::chrono::seconds kEachLine{10};

}  // namespace

ProgressLine::ProgressLine(std::string what)
    : ProgressLine(std::move(what), {.write =
                                         [](const std::string& text) {
                                           std::fputs(text.c_str(), stderr);
                                           std::fflush(stderr);
                                         },
                                     .is_terminal = ::isatty(STDERR_FILENO) == 1}) {}

ProgressLine::ProgressLine(std::string what, Output output)
    : what_(std::move(what)),
      output_(std::move(output)),
      begin_(output_.now()),
      next_(begin_ + kFirst) {}

ProgressLine::~ProgressLine() {
  if (is_shown_ && output_.is_terminal) output_.write("\n");
}

void ProgressLine::update(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const Clock::time_point now = output_.now();
  if (now < next_) return;
  is_shown_ = true;
  next_ = now + (output_.is_terminal ? Clock::duration(kEachOnTerminal) : kEachLine);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto done = static_cast<double>(done_bytes);
  const auto percent = total_bytes == 0 ? 100 : done_bytes * 100 / total_bytes;
  output_.write(concat(output_.is_terminal ? "\r" : "", what_, ": ", percent, " % of ",
                       size_text(static_cast<double>(total_bytes)), ", ", size_text(done / seconds),
                       "/s", output_.is_terminal ? "   " : "\n"));
}

}  // namespace lockstep::inline internal

#include "bench/all_reduce/progress.h"

#include <cstdio>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/terminal.h"

namespace lockstep::bench {
namespace {

constexpr std::chrono::seconds kQuietFor{2};
constexpr const char* kEraseLine = "\r\033[K";

}  // namespace

Progress::Progress(int rank, int steps) : steps_(steps), start_(std::chrono::steady_clock::now()) {
  if (rank == 0) columns_ = terminal_columns(STDERR_FILENO).value_or(0);
}

Progress::~Progress() {
  if (shown_) std::fputs(kEraseLine, stderr);
}

void Progress::step(const std::string& what) {
  const int percent = 100 * done_++ / steps_;
  if (columns_ < 2 || std::chrono::steady_clock::now() - start_ < kQuietFor) return;
  shown_ = true;
  const std::string line = concat(percent, " %  ", what);
  std::fputs((kEraseLine + line.substr(0, static_cast<std::size_t>(columns_ - 1))).c_str(), stderr);
}

}  // namespace lockstep::bench

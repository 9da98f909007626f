#include "lockstep/os/process/caught_signals.h"

#include <atomic>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"

namespace lockstep::inline internal {
namespace {

// Where the handler writes, which has no other way to know; -1: no object.
std::atomic<int> signal_pipe = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int signal) {
  const int error = errno;
  const auto number = static_cast<unsigned char>(signal);
  // A full pipe has enough of them.
  [[maybe_unused]] const auto written = ::write(signal_pipe, &number, 1);
  errno = error;
}

}  // namespace

CaughtSignals::CaughtSignals(const std::vector<int>& signals) : pipe_(make_pipe()) {
  for (const int fd : {pipe_.read_end.get(), pipe_.write_end.get()}) {
    if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) throw SystemError("make a pipe for signals", errno);
  }
  int none = -1;
  if (!signal_pipe.compare_exchange_strong(none, pipe_.write_end.get())) {
    throw UsageError("another part of the program catches signals already; wait for its end");
  }
  for (const int signal : signals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    if (::sigaction(signal, &action, nullptr) == 0) caught_.push_back(signal);
  }
}

CaughtSignals::~CaughtSignals() {
  for (const int signal : caught_) ::signal(signal, are_left_ignored_ ? SIG_IGN : SIG_DFL);
  signal_pipe = -1;
}

std::optional<int> CaughtSignals::next() {
  unsigned char number = 0;
  if (::read(pipe_.read_end.get(), &number, 1) != 1) return std::nullopt;
  return number;
}

}  // namespace lockstep::inline internal

#include "bench/same_bits/random_kills.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <random>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::bench::same_bits {
namespace {

void arm(std::chrono::nanoseconds delay) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
    throw SystemError("timer_create", errno);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  const itimerspec when{.it_interval = {},
                        .it_value = {.tv_sec = seconds.count(),
                                     .tv_nsec = std::max<long>(1, (delay - seconds).count())}};
  if (::timer_settime(timer, 0, &when, nullptr) != 0) throw SystemError("timer_settime", errno);
}

}  // namespace

RandomKills::RandomKills(int kills, std::int64_t steps, int seed, std::string folder)
    : folder_(std::move(folder)) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  for (int kill = 0; kill < kills; ++kill) {
    Kill& one = kills_.emplace_back();
    // None in the last steps: a kill waits until the one before has been recovered from.
    one.step = random() % std::max<std::int64_t>(1, steps * 9 / 10);
    one.victim = random();
    one.delay = std::uniform_real_distribution(0.0, 1.2)(random);
  }
  std::ranges::sort(kills_, {}, &Kill::step);
}

std::string RandomKills::file_of(std::size_t kill) const {
  return concat(folder_, "/", kill);
}

// Whether the victim has armed its timer and lives.
bool RandomKills::is_under_way(std::size_t kill) const {
  pid_t victim = 0;
  std::ifstream(file_of(kill)) >> victim;
  return victim == 0 || ::kill(victim, 0) == 0;
}

void RandomKills::begin_step(std::int64_t step, int rank, int ranks) {
  const Clock::time_point now = Clock::now();
  const auto last_step = std::exchange(begin_, now);
  while (next_ < kills_.size() && ::access(file_of(next_).c_str(), F_OK) == 0) ++next_;
  if (next_ == kills_.size() || ranks == 1) return;
  const Kill& kill = kills_[next_];
  if (kill.step > step ||
      kill.victim % static_cast<std::uint32_t>(ranks) != static_cast<std::uint32_t>(rank)) {
    return;
  }
  const std::size_t must_be_dead = ranks > 2 ? 2 : 1;
  if (next_ >= must_be_dead && is_under_way(next_ - must_be_dead)) return;
  const int file = ::open(file_of(next_).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return;  // Another rank has drawn it, in a job of another size.
  const std::string pid = std::to_string(::getpid());
  if (::write(file, pid.data(), pid.size()) < 0) throw SystemError("write", errno);
  ::close(file);
  arm(std::chrono::duration_cast<std::chrono::nanoseconds>((now - last_step) * kill.delay));
}

}  // namespace lockstep::bench::same_bits

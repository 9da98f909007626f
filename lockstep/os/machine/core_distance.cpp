#include "lockstep/os/machine/core_distance.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "lockstep/os/machine/affinity.h"

namespace lockstep::inline internal {
namespace {

using Clock = Deadline::Clock;

// Round trips of one line, on Zen 4 and Zen 5: 80 to 100 ns inside one last-level cache, 200 ns and
// more outside.
constexpr double kFarFromNs = 150;
constexpr std::chrono::milliseconds kLongestMeasurement{20};
// A reading of the clock takes as long as half a round trip: one for so many rounds.
constexpr int kRoundsPerReading = 32;
// Fewer make no median: one processor was held by another thread for most of the time.
constexpr std::size_t kFewestReadings = 8;
constexpr int kLoadsPerLookAtClock = 256;

// Spins until `arrived` holds for the line's value, which it returns; nothing at the deadline.
template <class Condition>
std::optional<std::uint32_t> spin_until(const std::atomic<std::uint32_t>& line,
                                        const Deadline& deadline, Condition arrived) {
  do {
    for (int load = 0; load < kLoadsPerLookAtClock; ++load) {
      const std::uint32_t value = line.load(std::memory_order_acquire);
      if (arrived(value)) return value;
    }
  } while (!deadline.passed());
  return std::nullopt;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

const char* placement_name(Placement placement) {
  constexpr std::array kNames = {"near", "far", "unknown"};
  return kNames.at(static_cast<std::size_t>(placement));
}

Placement classify_round_trip(double round_trip_ns) {
  if (!(round_trip_ns > 0)) return Placement::kUnknown;
  return round_trip_ns < kFarFromNs ? Placement::kNear : Placement::kFar;
}

// The line is odd while it is the other side's turn, so neither side must know where it stood.
std::optional<double> ping(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline) {
  std::vector<double> readings;
  readings.reserve(static_cast<std::size_t>(rounds / kRoundsPerReading) + 1);
  std::uint32_t value = line.load(std::memory_order_relaxed);
  for (int round = 0; round < rounds;) {
    const int batch = std::min(kRoundsPerReading, rounds - round);
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) {
      line.store(value + 1, std::memory_order_release);
      value += 2;
      const auto answer =
          spin_until(line, deadline, [&](std::uint32_t now) { return now == value; });
      if (!answer) {
        if (readings.size() < kFewestReadings) return std::nullopt;
        return median(readings);
      }
    }
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
    // The first reading holds the wait for the other side to begin.
    if (round > 0) readings.push_back(elapsed.count() / batch);
    round += batch;
  }
  if (readings.size() < kFewestReadings) return std::nullopt;
  return median(readings);
}

bool pong(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline) {
  for (int round = 0; round < rounds; ++round) {
    const auto value = spin_until(line, deadline, [](std::uint32_t now) { return now % 2 == 1; });
    if (!value) return false;
    line.store(*value + 1, std::memory_order_release);
  }
  return true;
}

CoreDistance measure_core_distance(int first_cpu, int second_cpu) {
  if (first_cpu == second_cpu) return {};
  struct alignas(128) Line {  // two lines: hardware fetches them in pairs
    std::atomic<std::uint32_t> value{0};
  } line;
  const PinnedToCpu pinned(first_cpu);
  if (!pinned.pinned()) return {};
  std::promise<bool> other_pinned;
  const auto deadline = Deadline::after(kLongestMeasurement);
  std::thread other([&] {
    const bool allowed = pin_to_cpu(second_cpu);
    other_pinned.set_value(allowed);
    if (allowed) pong(line.value, kPingRounds, deadline);
  });
  // Waits asleep: the thread starts on this one's processor and could not leave it for a spinner.
  if (!other_pinned.get_future().get()) {
    other.join();
    return {};
  }
  const auto round_trip_ns = ping(line.value, kPingRounds, deadline);
  other.join();
  if (!round_trip_ns) return {};
  return {.round_trip_ns = *round_trip_ns, .placement = classify_round_trip(*round_trip_ns)};
}

CoreDistance measure_core_distance() {
  const std::vector<int> cpus = allowed_cpus();
  if (cpus.size() < 2) return {};
  return measure_core_distance(cpus[0], cpus[1]);
}

}  // namespace lockstep::inline internal

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/os/machine/affinity.h"
#include "lockstep/os/machine/core_distance.h"

/// The loop of `lockstep bench all-reduce` for programs that have their own way to communicate:
/// the same sizes, checks, samples and labels, in the same JSON.
namespace lockstep::bench {

struct Peer {
  int rank;
  int ranks;
  /// Sums float32 in place over all ranks.
  std::function<void(float* values, std::size_t elements)> all_reduce;
  std::function<void()> barrier;
  /// The largest of all ranks' values, place by place.
  std::function<void(std::vector<double>& values)> max;
};

namespace peer {

using Clock = std::chrono::steady_clock;

inline double elapsed_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

inline void check_sums(const Peer& peer, std::vector<float>& values, std::size_t elements) {
  constexpr std::size_t kPeriod = 997;
  const auto value_of = [](std::size_t index, int rank) {
    return static_cast<float>((index * 31 + static_cast<std::size_t>(rank) * 17) % kPeriod);
  };
  std::array<float, kPeriod> sums{};
  for (std::size_t i = 0; i < kPeriod; ++i) {
    for (int rank = 0; rank < peer.ranks; ++rank) sums[i] += value_of(i, rank);
  }
  for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(i % kPeriod, peer.rank);
  peer.all_reduce(values.data(), elements);
  for (std::size_t i = 0; i < elements; ++i) {
    if (values[i] == sums[i % kPeriod]) continue;
    std::fprintf(stderr, "rank %d: element %zu of %zu is %g, not %g\n", peer.rank, i, elements,
                 values[i], sums[i % kPeriod]);
    std::exit(1);
  }
  std::fill(values.begin(), values.end(), 0.0F);
}

inline std::vector<double> sample(const Peer& peer, float* values, std::size_t elements,
                                  double sample_ms) {
  constexpr double kShortestTimingUs = 20;
  peer.barrier();
  std::vector<double> guess(1);
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) peer.all_reduce(values, elements);
  guess[0] = std::max(0.01, elapsed_us(begin) / 3);
  peer.max(guess);
  const int calls = std::max(1, static_cast<int>(std::ceil(kShortestTimingUs / guess[0])));
  const int timings = std::clamp(static_cast<int>(sample_ms * 1e3 / (guess[0] * calls)), 3, 2000);
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(timings));
  peer.barrier();
  for (int timing = 0; timing < timings; ++timing) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) peer.all_reduce(values, elements);
    times.push_back(elapsed_us(start) / calls);
  }
  peer.max(times);
  return times;
}

// Lines that ranks 0 and 1 share through a file: libraries spin while they wait, so neither rank
// could measure the distance with a thread on the other's processor.
class SharedLines {
 public:
  explicit SharedLines(const char* path) {
    const int file = ::open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ::ftruncate(file, kBytes) != 0) fail(path);
    lines_ =
        static_cast<Line*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (lines_ == MAP_FAILED) fail(path);
    ::close(file);
  }
  ~SharedLines() { ::munmap(lines_, kBytes); }
  SharedLines(const SharedLines&) = delete;
  SharedLines& operator=(const SharedLines&) = delete;

  /// The next, the same on every rank: one whose deadline expired is not used again.
  std::atomic<std::uint32_t>& next() { return lines_[next_++ % (kBytes / sizeof(Line))].value; }

 private:
  struct alignas(128) Line {
    std::atomic<std::uint32_t> value;
  };
  static constexpr std::size_t kBytes = 1 << 20;

  [[noreturn]] static void fail(const char* path) {
    std::fprintf(stderr, "cannot share the file %s: %s\n", path, std::strerror(errno));
    std::exit(1);
  }

  Line* lines_ = nullptr;
  std::size_t next_ = 0;
};

inline Placement distance(const Peer& peer, SharedLines& lines) {
  std::atomic<std::uint32_t>& line = lines.next();
  peer.barrier();
  const auto deadline = Deadline::after(std::chrono::milliseconds(20));
  if (peer.rank == 0) {
    return classify_round_trip(ping(line, kPingRounds, deadline).value_or(0));
  }
  if (peer.rank == 1) pong(line, kPingRounds, deadline);
  return Placement::kUnknown;
}

}  // namespace peer

/// Pins the rank, measures every size in turns and prints a line of JSON for each sample on rank 0:
/// {"bytes": 4, "placement": "near", "us": [0.2, ...]}. `lines_file` is a new file that all ranks
/// see.
inline void run_peer(const Peer& peer, const std::vector<std::int64_t>& sizes, int rounds,
                     double sample_ms, const char* lines_file) {
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(peer.rank);
  if (static_cast<std::size_t>(peer.ranks) <= cpus.size()) pin_to_cpu(cpus[rank]);
  peer::SharedLines lines(lines_file);
  const auto largest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<float> values(largest / sizeof(float));
  for (const std::int64_t bytes : sizes) {
    peer::check_sums(peer, values, static_cast<std::size_t>(bytes) / sizeof(float));
  }
  for (int round = 0; round < rounds; ++round) {
    for (const std::int64_t bytes : sizes) {
      const std::size_t elements = static_cast<std::size_t>(bytes) / sizeof(float);
      const Placement before = peer::distance(peer, lines);
      const std::vector<double> times = peer::sample(peer, values.data(), elements, sample_ms);
      const Placement after = peer::distance(peer, lines);
      if (peer.rank != 0) continue;
      std::printf("{\"bytes\": %lld, \"placement\": \"%s\", \"us\": [",
                  static_cast<long long>(bytes),
                  before == after ? placement_name(before) : "mixed");
      for (std::size_t i = 0; i < times.size(); ++i) {
        std::printf("%s%.4g", i == 0 ? "" : ", ", times[i]);
      }
      std::printf("]}\n");
    }
  }
}

}  // namespace lockstep::bench

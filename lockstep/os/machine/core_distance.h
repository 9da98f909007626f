#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "lockstep/base/internal/deadline.h"

/// How far apart two processors are now: how long a cache line takes from one to the other and
/// back. Two virtual processors may share a last-level cache at one moment and not at the next, and
/// what a store to a line that the other holds costs then differs by ten times; so it is measured,
/// not read from the machine's description.
namespace lockstep::inline internal {

enum class Placement {
  kNear,     ///< they share a last-level cache
  kFar,      ///< lines travel between caches, dies or sockets
  kUnknown,  ///< not measured: one processor, or another process held one of them meanwhile
};

struct CoreDistance {
  double round_trip_ns = 0;  ///< median; 0 where unknown
  Placement placement = Placement::kUnknown;
};

/// "near", "far" or "unknown".
const char* placement_name(Placement placement);

Placement classify_round_trip(double round_trip_ns);

/// Rounds that measure well and take less than a millisecond on two idle processors.
inline constexpr int kPingRounds = 2048;

/// One side of the measurement over a line of its own (64 bytes that hold nothing else, shared by
/// two threads or two processes), zero at first: sends it `rounds` times and waits for each answer
/// of pong() on the other side. Returns the median round trip in nanoseconds; nothing when the
/// deadline came before enough rounds for a median. The line may be used again when all rounds were
/// made, so after a deadline take a fresh one. Spins: each side needs a processor for itself.
std::optional<double> ping(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline);

/// The other side: answers `rounds` times. Returns false when the deadline came first.
bool pong(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline);

/// Measures between two processors with two threads pinned to them, the calling one and one made
/// for it; takes 20 ms at most. The calling thread's processors are as before afterwards.
/// Placement is kUnknown when they are the same processor or not allowed.
CoreDistance measure_core_distance(int first_cpu, int second_cpu);

/// Between the first two processors that the calling thread may run on.
CoreDistance measure_core_distance();

}  // namespace lockstep::inline internal

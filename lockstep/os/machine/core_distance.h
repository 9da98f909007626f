#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "lockstep/base/internal/deadline.h"

/// Measures the round trip of a cache line between two processors. Two virtual processors may share
/// a last-level cache at one moment and not at the next, and the cost of a store to a line that the
/// other holds then differs by a factor of ten. So it is measured, not read from the machine's
/// description.
namespace lockstep::inline internal {

/// Class of a round trip.
enum class Placement {
  kNear,     ///< they share a last-level cache
  kFar,      ///< lines travel between caches, dies or sockets
  kUnknown,  ///< not measured: a single processor, or another process used one of them
};

/// Result of a measurement.
struct CoreDistance {
  double round_trip_ns = 0;  ///< median; 0: unknown
  Placement placement = Placement::kUnknown;
};

/// "near", "far" or "unknown".
const char* placement_name(Placement placement);

/// kNear or kFar, by the round trip in ns.
Placement classify_round_trip(double round_trip_ns);

/// Number of rounds that gives a stable median and takes less than a millisecond on two idle
/// processors.
inline constexpr int kPingRounds = 2048;

/// One side of the measurement, over a cache line of its own (64 bytes, shared by two threads or
/// processes, initially 0): sends it `rounds` times and waits for each answer of pong(). Returns
/// the median round trip in ns; empty if the deadline expired before enough rounds for a median.
/// The line may be reused after all rounds, not after an expired deadline. It spins: each side
/// needs a processor of its own.
std::optional<double> ping(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline);

/// The other side: answers `rounds` times. Returns false if the deadline expired first.
bool pong(std::atomic<std::uint32_t>& line, int rounds, const Deadline& deadline);

/// Measures between two processors, with the calling thread and a new thread bound to them; takes
/// 20 ms at most. Restores the calling thread's processors. kUnknown for equal or forbidden
/// processors.
CoreDistance measure_core_distance(int first_cpu, int second_cpu);

/// Measures between the first two processors that the calling thread may run on.
CoreDistance measure_core_distance();

}  // namespace lockstep::inline internal

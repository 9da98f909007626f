#pragma once

#include <cstdint>

namespace lockstep {

/// Which of the ranks that share a batch.
struct BatchPart {
  int rank = 0;
  int world_size = 1;
};

/// Positions in the order of an epoch.
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool operator==(const SampleRange&) const = default;
};

/// A rank's part of a batch. The parts of all ranks, one behind the other, are the batch; the first
/// ranks have one more where it does not divide. Needs 0 <= rank < world_size.
SampleRange part_of(const SampleRange& batch, const BatchPart& part);

}  // namespace lockstep

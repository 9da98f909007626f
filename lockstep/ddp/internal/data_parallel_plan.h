#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// A range of a batch, along the dimension in which it is split.
struct BatchChunk {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  bool operator==(const BatchChunk&) const = default;
};

/// Splits a batch as torch.nn.DataParallel does: chunks of ceil(batch / replicas), the last one
/// shorter, and as many as that gives: 30 over 8 are 4 4 4 4 4 4 4 2, 10 over 8 are 2 2 2 2 2. An
/// empty batch is one chunk.
std::vector<BatchChunk> scatter_batch(std::int64_t batch, int replicas);

/// Divides threads evenly, at least one per replica.
std::vector<int> divide_threads(int threads, int replicas);

}  // namespace lockstep::inline internal

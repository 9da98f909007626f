#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// A part of a batch, along the dimension in which it is scattered.
struct BatchChunk {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  bool operator==(const BatchChunk&) const = default;
};

/// How a batch is scattered, as torch.nn.DataParallel does: chunks of ceil(batch / replicas), the
/// last one shorter, and as many as that makes: 30 over 8 are 4 4 4 4 4 4 4 2, 10 over 8 are
/// 2 2 2 2 2. An empty batch is one chunk.
std::vector<BatchChunk> scatter_batch(std::int64_t batch, int replicas);

/// Shares out threads as evenly as they go, at least one to each replica.
std::vector<int> divide_threads(int threads, int replicas);

}  // namespace lockstep::inline internal

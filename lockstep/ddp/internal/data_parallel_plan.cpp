#include "lockstep/ddp/internal/data_parallel_plan.h"

#include <algorithm>

namespace lockstep::inline internal {

std::vector<BatchChunk> scatter_batch(std::int64_t batch, int replicas) {
  if (batch == 0) return {BatchChunk{}};
  const std::int64_t length = (batch + replicas - 1) / replicas;
  std::vector<BatchChunk> chunks;
  for (std::int64_t offset = 0; offset < batch; offset += length) {
    chunks.push_back({.offset = offset, .length = std::min(length, batch - offset)});
  }
  return chunks;
}

std::vector<int> divide_threads(int threads, int replicas) {
  std::vector<int> shares;
  for (int i = 0; i < replicas; ++i) {
    shares.push_back(std::max(1, threads / replicas + (i < threads % replicas ? 1 : 0)));
  }
  return shares;
}

}  // namespace lockstep::inline internal

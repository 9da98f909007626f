#include "lockstep/ddp/internal/data_parallel_plan.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<std::int64_t> lengths(std::int64_t batch, int replicas) {
  std::vector<std::int64_t> result;
  for (const BatchChunk& chunk : scatter_batch(batch, replicas)) result.push_back(chunk.length);
  return result;
}

using Lengths = std::vector<std::int64_t>;

TEST(ScatterBatch, AsPyTorchDoes) {
  EXPECT_EQ(lengths(30, 8), (Lengths{4, 4, 4, 4, 4, 4, 4, 2}));
  EXPECT_EQ(lengths(10, 8), (Lengths{2, 2, 2, 2, 2}));
  EXPECT_EQ(lengths(3, 8), (Lengths{1, 1, 1}));
  EXPECT_EQ(lengths(7, 1), (Lengths{7}));
}

TEST(ScatterBatch, AnEmptyBatchIsOneChunk) {
  EXPECT_EQ(lengths(0, 1), (Lengths{0}));
  EXPECT_EQ(lengths(0, 4), (Lengths{0}));
}

TEST(ScatterBatch, CoversEveryBatchOnceWithoutEmptyChunks) {
  for (int replicas = 1; replicas <= 17; ++replicas) {
    for (std::int64_t batch = 1; batch <= 70; ++batch) {
      const auto chunks = scatter_batch(batch, replicas);
      ASSERT_LE(chunks.size(), static_cast<std::size_t>(replicas));
      std::int64_t next = 0;
      for (const BatchChunk& chunk : chunks) {
        EXPECT_EQ(chunk.offset, next);
        EXPECT_GT(chunk.length, 0);
        EXPECT_LE(chunk.length, chunks[0].length);
        next += chunk.length;
      }
      EXPECT_EQ(next, batch);
      EXPECT_EQ(chunks[0].length, (batch + replicas - 1) / replicas);
    }
  }
}

TEST(DivideThreads, EvenlyAndAtLeastOneEach) {
  EXPECT_EQ(divide_threads(8, 4), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(divide_threads(7, 3), (std::vector<int>{3, 2, 2}));
  EXPECT_EQ(divide_threads(2, 4), (std::vector<int>{1, 1, 1, 1}));
  for (int threads = 1; threads <= 20; ++threads) {
    for (int replicas = 1; replicas <= 20; ++replicas) {
      const auto shares = divide_threads(threads, replicas);
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), std::max(threads, replicas));
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      EXPECT_LE(*most - *least, 1);
    }
  }
}

}  // namespace
}  // namespace lockstep

#include "lockstep/data/internal/shard.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Indices = std::vector<std::size_t>;

// An order that is not sorted, so that positions and indices cannot be mixed up.
Indices reversed_order(std::size_t size) {
  Indices order(size);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

// The definition, word for word: lengthen or cut the order, then take every num_replicas-th.
Indices by_definition(Indices order, const Shard& shard) {
  const auto replicas = static_cast<std::size_t>(shard.num_replicas);
  const Indices once = order;
  if (shard.tail == Tail::kPad && !once.empty()) {
    for (std::size_t next = 0; order.size() % replicas != 0; next = (next + 1) % once.size()) {
      order.push_back(once[next]);
    }
  }
  if (shard.tail == Tail::kDrop) order.resize(order.size() - order.size() % replicas);
  Indices taken;
  for (std::size_t at = static_cast<std::size_t>(shard.rank); at < order.size(); at += replicas) {
    taken.push_back(order[at]);
  }
  return taken;
}

TEST(Shard, IsTheStridedPartOfTheOrderForEverySizeAndWorld) {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    for (std::size_t size = 0; size <= 40; ++size) {
      for (int rank = 0; rank < replicas; ++rank) {
        for (const Tail tail : {Tail::kPad, Tail::kDrop, Tail::kKeep}) {
          const Shard shard{replicas, rank, tail};
          const Indices order = reversed_order(size);
          const Indices indices = shard_indices(order, shard);
          ASSERT_EQ(indices, by_definition(order, shard))
              << size << " samples, rank " << rank << " of " << replicas << ", tail "
              << static_cast<int>(tail);
          ASSERT_EQ(shard_size(size, shard), indices.size());
        }
      }
    }
  }
}

TEST(Shard, PaddedShardsAreAsLongOnEveryRankEvenWhenTheDatasetIsSmallerThanTheWorld) {
  EXPECT_EQ(shard_indices({0, 1}, {.num_replicas = 5, .rank = 4}), Indices{0});
  EXPECT_EQ(shard_indices({0, 1}, {.num_replicas = 5, .rank = 3}), Indices{1});
  EXPECT_EQ(shard_size(2, {.num_replicas = 5, .rank = 0, .tail = Tail::kDrop}), 0U);
  EXPECT_EQ(shard_size(0, {.num_replicas = 5, .rank = 0}), 0U);
}

TEST(Shard, KeptTailsCoverEverySampleOnce) {
  for (int replicas = 1; replicas <= 4; ++replicas) {
    Indices all;
    for (int rank = 0; rank < replicas; ++rank) {
      const Indices part = shard_indices(reversed_order(97), {replicas, rank, Tail::kKeep});
      all.insert(all.end(), part.begin(), part.end());
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    EXPECT_EQ(all, reversed_order(97));
  }
}

}  // namespace
}  // namespace lockstep

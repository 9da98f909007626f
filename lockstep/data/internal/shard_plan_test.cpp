#include "lockstep/data/internal/shard_plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::inline internal {
namespace {

constexpr int kMostShards = 64;

// The definition, without a stack: halves of the smallest power of two that holds all shards.
std::string tree_over(int begin, int size, int shards) {
  if (size == 1) return std::to_string(begin);
  const int half = size / 2;
  const std::string left = tree_over(begin, half, shards);
  if (begin + half >= shards) return left;
  return "(" + left + "+" + tree_over(begin + half, half, shards) + ")";
}

std::string tree_over(int shards) {
  return tree_over(0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(shards))), shards);
}

// Sums texts as ranks sum tensors.
struct TextSum {
  explicit TextSum(int shards) : tree(shards) {}
  void push(const ShardNode& node, const std::string& text) {
    values.push_back(text);
    for (int sums = tree.push(node); sums > 0; --sums) {
      most = std::max(most, values.size());
      const std::string right = values.back();
      values.pop_back();
      values.back() = "(" + values.back() + "+" + right + ")";
    }
  }
  ShardTree tree;
  std::vector<std::string> values;
  std::size_t most = 0;
};

// Of a block of n shards, by the derivation in the header.
std::size_t most_of_block(int n) {
  const auto least_size = [](int nodes) {
    return nodes % 2 == 0 ? 2 * ((1 << nodes / 2) - 1) : 3 * (1 << (nodes - 1) / 2) - 2;
  };
  int nodes = 0;
  while (least_size(nodes + 1) <= n) ++nodes;
  return static_cast<std::size_t>(nodes);
}

TEST(ShardPlan, AllNumbersOfRanksSumTheSameTree) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    const std::string expected = tree_over(shards);
    for (int ranks = 1; ranks <= shards + 2; ++ranks) {
      TextSum all(shards);
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardBlock block = shards_of_rank(shards, ranks, rank);
        TextSum own(shards);
        for (int shard = block.begin; shard < block.end; ++shard) {
          own.push({.first = shard}, std::to_string(shard));
        }
        ASSERT_EQ(own.tree.nodes(), partial_sums(shards, block));
        ASSERT_EQ(own.tree.nodes().size(), own.values.size());
        for (std::size_t i = 0; i < own.values.size(); ++i) {
          all.push(own.tree.nodes()[i], own.values[i]);
        }
      }
      ASSERT_TRUE(all.tree.is_complete()) << shards << " shards on " << ranks << " ranks";
      ASSERT_EQ(all.values.front(), expected) << shards << " shards on " << ranks << " ranks";
    }
  }
}

TEST(ShardPlan, BlocksCoverAllShardsInOrderAndDifferByOneAtMost) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    for (int ranks = 1; ranks <= shards + 2; ++ranks) {
      int end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardBlock block = shards_of_rank(shards, ranks, rank);
        ASSERT_EQ(block.begin, end);
        ASSERT_GE(block.size(), shards / ranks);
        ASSERT_LE(block.size(), (shards + ranks - 1) / ranks);
        end = block.end;
      }
      ASSERT_EQ(end, shards);
    }
  }
}

TEST(ShardPlan, PartialSumsAreWithinTheirBounds) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    for (int ranks = 1; ranks <= shards; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardBlock block = shards_of_rank(shards, ranks, rank);
        TextSum own(shards);
        for (int shard = block.begin; shard < block.end; ++shard) {
          own.push({.first = shard}, "");
        }
        const std::size_t bound = most_of_block(block.size());
        ASSERT_LE(own.values.size(), bound) << shards << " shards on " << ranks << " ranks";
        // With the value that is pushed.
        ASSERT_LE(own.most, bound + 1) << shards << " shards on " << ranks << " ranks";
        if (block.begin == 0) {
          ASSERT_LE(own.most, std::bit_width(static_cast<unsigned>(block.size())) + 1U);
        }
      }
      ASSERT_LE(most_partial_sums(shards, ranks),
                static_cast<int>(most_of_block((shards + ranks - 1) / ranks)));
    }
  }
}

TEST(ShardPlan, PowersOfTwoSendOnePartialSumEach) {
  for (const int shards : {1, 2, 4, 8, 16, 32, 64}) {
    for (int ranks = 1; ranks <= shards; ranks *= 2) EXPECT_EQ(most_partial_sums(shards, ranks), 1);
  }
  EXPECT_EQ(most_partial_sums(8, 3), 2);
  EXPECT_EQ(most_partial_sums(8, 5), 2);
  EXPECT_EQ(most_partial_sums(64, 7), 4);
}

}  // namespace
}  // namespace lockstep::inline internal

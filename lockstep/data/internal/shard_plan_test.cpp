#include "lockstep/data/internal/shard_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
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
    }
  }
}

// The definition: the largest aligned nodes, from the left.
std::vector<ShardNode> largest_nodes(int shards, const ShardBlock& block) {
  std::vector<ShardNode> nodes;
  const int depth = std::bit_width(static_cast<unsigned>(shards - 1));
  const auto end_of = [&](const ShardNode& node) {
    return std::min(shards, node.first + (1 << node.level));
  };
  for (int first = block.begin; first < block.end; first = end_of(nodes.back())) {
    ShardNode node{.first = first};
    for (int level = 1; level <= depth; ++level) {
      const ShardNode larger{.first = first, .level = level};
      if (first % (1 << level) == 0 && end_of(larger) <= block.end) node = larger;
    }
    nodes.push_back(node);
  }
  return nodes;
}

TEST(ShardPlan, ConsecutiveRanksAreSummedToTheLargestNodesOfTheirShards) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    for (int begin = 0; begin <= shards; ++begin) {
      for (int end = begin; end <= shards; ++end) {
        const auto nodes = partial_sums(shards, {.begin = begin, .end = end});
        ASSERT_EQ(nodes, largest_nodes(shards, {.begin = begin, .end = end}));
        ASSERT_LE(nodes.size(), most_of_block(end - begin));
        ASSERT_LE(static_cast<double>(nodes.size()), 2 * std::log2(end - begin + 2) - 2);
      }
    }
    for (int ranks = 1; ranks <= shards + 2; ++ranks) {
      for (int first = 0; first < ranks; ++first) {
        ShardTree of_machine(shards);
        for (int rank = first; rank < ranks; ++rank) {
          const ShardBlock block = shards_of_rank(shards, ranks, rank);
          for (const ShardNode& node : partial_sums(shards, block)) of_machine.push(node);
          const int begin = shards_of_rank(shards, ranks, first).begin;
          ASSERT_EQ(of_machine.nodes(), partial_sums(shards, {.begin = begin, .end = block.end}));
        }
      }
    }
  }
}

// Stands for an order of additions, as the texts do.
std::uint64_t mixed(std::uint64_t left, std::uint64_t right) {
  return (left * 0x9E3779B97F4A7C15ULL + 1) ^ std::rotl(right * 0xC2B2AE3D27D4EB4FULL, 29);
}

std::uint64_t number_of(const ShardNode& node, int shards) {
  if (node.level == 0) return static_cast<std::uint64_t>(node.first) + 1;
  const auto left = number_of({.first = node.first, .level = node.level - 1}, shards);
  const int middle = node.first + (1 << (node.level - 1));
  if (middle >= shards) return left;
  return mixed(left, number_of({.first = middle, .level = node.level - 1}, shards));
}

template <class Value, class Add>
std::vector<Value> run(const SumPlan& plan, std::vector<Value> values, const Add& add) {
  for (const auto& [left, right] : plan.sums) {
    values.push_back(
        add(values[static_cast<std::size_t>(left)], values[static_cast<std::size_t>(right)]));
  }
  std::vector<Value> results;
  for (const int result : plan.results) results.push_back(values[static_cast<std::size_t>(result)]);
  return results;
}

// A machine with consecutive ranks has some block of shards, so that these are all splits of any
// number of ranks over up to four machines.
TEST(ShardPlan, FourMachinesSumTheSameTreeWhateverTheirShards) {
  for (int shards = 1; shards <= kMostShards; ++shards) {
    const auto size = static_cast<std::size_t>(shards) + 1;
    std::vector<std::vector<ShardNode>> nodes_of(size * size);
    const auto nodes = [&](int begin, int end) -> auto& {
      return nodes_of[static_cast<std::size_t>(begin) * size + static_cast<std::size_t>(end)];
    };
    for (int begin = 0; begin <= shards; ++begin) {
      for (int end = begin; end <= shards; ++end) {
        nodes(begin, end) = partial_sums(shards, {.begin = begin, .end = end});
      }
    }
    const int depth = std::bit_width(static_cast<unsigned>(shards - 1));
    const std::uint64_t expected = number_of({.first = 0, .level = depth}, shards);
    for (int a = 0; a <= shards; ++a) {
      for (int b = a; b <= shards; ++b) {
        for (int c = b; c <= shards; ++c) {
          ShardTree tree(shards);
          std::vector<std::uint64_t> values;
          for (const auto* of_machine :
               {&nodes(0, a), &nodes(a, b), &nodes(b, c), &nodes(c, shards)}) {
            for (const ShardNode& node : *of_machine) {
              values.push_back(number_of(node, shards));
              for (int sums = tree.push(node); sums > 0; --sums) {
                const std::uint64_t right = values.back();
                values.pop_back();
                values.back() = mixed(values.back(), right);
              }
            }
          }
          ASSERT_TRUE(tree.is_complete())
              << shards << " shards cut at " << a << " " << b << " " << c;
          ASSERT_EQ(values.front(), expected)
              << shards << " shards cut at " << a << " " << b << " " << c;
        }
      }
    }
  }
}

std::vector<std::vector<std::vector<int>>> machines_of_ranks(int ranks) {
  std::vector<std::vector<std::vector<int>>> all;
  for (int a = 1; a <= ranks; ++a) {
    for (int b = a; b <= ranks; ++b) {
      for (int c = b; c <= ranks; ++c) {
        std::vector<std::vector<int>> machines(4);
        for (int rank = 0; rank < ranks; ++rank) {
          machines[rank < a ? 0 : rank < b ? 1 : rank < c ? 2 : 3].push_back(rank);
        }
        std::erase_if(machines, [](const auto& of_machine) { return of_machine.empty(); });
        all.push_back(machines);
      }
    }
  }
  std::vector<std::vector<int>> in_turn(static_cast<std::size_t>(std::min(ranks, 3)));
  for (int rank = 0; rank < ranks; ++rank) {
    in_turn[static_cast<std::size_t>(rank) % in_turn.size()].push_back(rank);
  }
  all.push_back(in_turn);
  return all;
}

TEST(ShardPlan, AnExchangeOverMachinesSumsTheTree) {
  const auto add = [](const std::string& left, const std::string& right) {
    return "(" + left + "+" + right + ")";
  };
  for (const int shards : {1, 2, 3, 5, 7, 8, 13}) {
    for (int ranks = 1; ranks <= shards + 1; ++ranks) {
      for (const auto& machines : machines_of_ranks(ranks)) {
        std::vector<std::vector<std::string>> of_machines;
        ShardExchangePlan plan;
        for (std::size_t machine = 0; machine < machines.size(); ++machine) {
          plan = plan_shard_exchange(shards, machines, machine);
          std::vector<std::string> inputs;
          for (const int rank : machines[machine]) {
            TextSum own(shards);
            const ShardBlock block = shards_of_rank(shards, ranks, rank);
            for (int shard = block.begin; shard < block.end; ++shard) {
              own.push({.first = shard}, std::to_string(shard));
            }
            inputs.insert(inputs.end(), own.values.begin(), own.values.end());
          }
          of_machines.push_back(run(plan.within, inputs, add));
          ASSERT_LE(static_cast<int>(of_machines.back().size()), plan.most_results);
        }
        std::vector<std::string> inputs;
        for (const auto& [machine, number] : plan.order) {
          inputs.push_back(
              of_machines[static_cast<std::size_t>(machine)][static_cast<std::size_t>(number)]);
        }
        ASSERT_EQ(run(plan.between, inputs, add), std::vector{tree_over(shards)})
            << shards << " shards, " << ranks << " ranks, " << machines.size() << " machines";
      }
    }
  }
}

TEST(ShardPlan, MachinesSendFewSums) {
  const auto most_results = [](int shards, const std::vector<std::vector<int>>& machines) {
    return plan_shard_exchange(shards, machines, 0).most_results;
  };
  EXPECT_EQ(most_results(8, {{0}, {1}, {2}}), 2);
  EXPECT_EQ(most_results(8, {{0, 1}, {2, 3}}), 1);
  EXPECT_EQ(most_results(8, {{0, 1}, {2}}), 2);
  EXPECT_EQ(most_results(8, {{0, 2}, {1, 3}}), 2);  // Blocks that are not consecutive.
  EXPECT_EQ(most_results(64, {{0}, {1}, {2}, {3}, {4}, {5}, {6}}), 4);
  EXPECT_EQ(most_results(64, {{0, 1, 2, 3}, {4, 5, 6}}), 3);
}

}  // namespace
}  // namespace lockstep::inline internal

#include "lockstep/data/internal/shard_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {

ShardBlock shards_of_rank(int shards, int ranks, int rank) {
  LOCKSTEP_ASSERT(shards >= 1 && 0 <= rank && rank < ranks);
  const auto begin_of = [&](int number) {
    return static_cast<int>(std::int64_t{number} * shards / ranks);
  };
  return {.begin = begin_of(rank), .end = begin_of(rank + 1)};
}

ShardTree::ShardTree(int shards) : shards_(shards), depth_(0) {
  LOCKSTEP_ASSERT(shards >= 1);
  while ((std::int64_t{1} << depth_) < shards) ++depth_;
}

int ShardTree::push(const ShardNode& node) {
  ShardNode newest = node;
  int sums = 0;
  while (newest.level < depth_) {
    const int size = 1 << newest.level;
    const bool is_left = (newest.first >> newest.level) % 2 == 0;
    if (is_left) {
      if (newest.first + size < shards_) break;  // Its sibling comes later.
    } else {
      const ShardNode sibling{.first = newest.first - size, .level = newest.level};
      if (nodes_.empty() || nodes_.back() != sibling) break;  // It is another rank's.
      nodes_.pop_back();
      newest.first = sibling.first;
      ++sums;
    }
    ++newest.level;
  }
  nodes_.push_back(newest);
  return sums;
}

bool ShardTree::is_complete() const {
  return nodes_.size() == 1 && nodes_.front() == ShardNode{.first = 0, .level = depth_};
}

SumPlan plan_sums(int shards, const std::vector<ShardNode>& inputs) {
  SumPlan plan{.inputs = static_cast<int>(inputs.size())};
  ShardTree tree(shards);
  for (int input = 0; input < plan.inputs; ++input) {
    plan.results.push_back(input);
    for (int sums = tree.push(inputs[static_cast<std::size_t>(input)]); sums > 0; --sums) {
      const int right = plan.results.back();
      plan.results.pop_back();
      plan.sums.push_back({.left = plan.results.back(), .right = right});
      plan.results.back() = plan.inputs + static_cast<int>(plan.sums.size()) - 1;
    }
  }
  plan.nodes = tree.nodes();
  return plan;
}

std::vector<ShardNode> partial_sums(int shards, const ShardBlock& block) {
  ShardTree tree(shards);
  for (int shard = block.begin; shard < block.end; ++shard) tree.push({.first = shard});
  return tree.nodes();
}

ShardExchangePlan plan_shard_exchange(int shards,
                                      const std::vector<std::vector<int>>& ranks_of_machines,
                                      std::size_t machine) {
  std::size_t ranks = 0;
  for (const auto& of_machine : ranks_of_machines) ranks += of_machine.size();
  ShardExchangePlan plan;
  std::vector<std::pair<ShardNode, ShardExchangePlan::Result>> results;
  for (std::size_t of = 0; of < ranks_of_machines.size(); ++of) {
    std::vector<ShardNode> inputs;
    for (const int rank : ranks_of_machines[of]) {
      const auto nodes =
          partial_sums(shards, shards_of_rank(shards, static_cast<int>(ranks), rank));
      inputs.insert(inputs.end(), nodes.begin(), nodes.end());
    }
    SumPlan within = plan_sums(shards, inputs);
    const auto count = static_cast<int>(within.nodes.size());
    plan.most_results = std::max(plan.most_results, count);
    for (int number = 0; number < count; ++number) {
      results.push_back({within.nodes[static_cast<std::size_t>(number)],
                         {.machine = static_cast<int>(of), .number = number}});
    }
    if (of == machine) plan.within = std::move(within);
  }
  // The ranks of machines may alternate.
  std::ranges::sort(results, {}, [](const auto& result) { return result.first.first; });
  std::vector<ShardNode> inputs;
  for (const auto& [node, result] : results) {
    inputs.push_back(node);
    plan.order.push_back(result);
  }
  plan.between = plan_sums(shards, inputs);
  return plan;
}

}  // namespace lockstep::inline internal

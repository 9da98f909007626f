#include "lockstep/data/internal/shard_plan.h"

#include <algorithm>
#include <cstdint>

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

std::vector<ShardNode> partial_sums(int shards, const ShardBlock& block) {
  ShardTree tree(shards);
  for (int shard = block.begin; shard < block.end; ++shard) tree.push({.first = shard});
  return tree.nodes();
}

int most_partial_sums(int shards, int ranks) {
  std::size_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    most = std::max(most, partial_sums(shards, shards_of_rank(shards, ranks, rank)).size());
  }
  return static_cast<int>(most);
}

}  // namespace lockstep::inline internal

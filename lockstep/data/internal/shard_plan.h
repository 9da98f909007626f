#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::inline internal {

/// Logical shards first to end - 1.
struct ShardBlock {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const ShardBlock&) const = default;
};

/// The shards that a rank computes: blocks in the order of the ranks, whose sizes differ by one at
/// most. Empty for some ranks where there are fewer shards than ranks.
/// Needs 0 <= rank < ranks and shards >= 1.
ShardBlock shards_of_rank(int shards, int ranks, int rank);

/// A node of the tree over shards: the sum of the shards from `first` to first + 2^level - 1, as far
/// as they exist. `first` is a multiple of 2^level.
struct ShardNode {
  int first = 0;
  int level = 0;
  bool operator==(const ShardNode&) const = default;
};

/// The order in which values of logical shards are summed, whatever the number of ranks: one
/// aligned binary tree. A node of level k + 1 is its left node of level k plus its right one; where
/// no shard lies under the right one, it is the left one. So the tree is a function of the number
/// of shards alone.
///
/// Values are pushed in the order of shards, as leaves or as nodes that another rank has summed. A
/// stack holds those nodes whose sibling is still missing, as a binary counter holds ones.
///
/// A rank with n shards holds at most b(n) nodes: those that its block is made of have lengths
/// 1, 2, 4, … up to the largest, and back to 1. So b(n) is the largest m with
///   2 (2^(m/2) - 1) <= n for even m,  3 * 2^((m-1)/2) - 2 <= n for odd m,
/// that is 1, 2, 2, 3, 3, 4 for n = 1 … 6, and at most 2 log2(n + 2) - 2. A block that begins at
/// shard 0, that of one rank alone too, holds at most log2(n) + 1. During a push there is one
/// more: the value that is pushed.
/// Threads: one at a time.
class ShardTree {
 public:
  explicit ShardTree(int shards);

  /// Returns how often the two newest values are now to be replaced by their sum, left plus right.
  int push(const ShardNode& node);
  /// What is not summed up yet, in the order of shards.
  const std::vector<ShardNode>& nodes() const { return nodes_; }
  /// One node is left: the sum of all shards.
  bool is_complete() const;
  void clear() { nodes_.clear(); }

 private:
  int shards_;
  int depth_;
  std::vector<ShardNode> nodes_;
};

/// The nodes that a block of shards is summed to, in their order.
std::vector<ShardNode> partial_sums(int shards, const ShardBlock& block);

/// The most partial sums that any of the ranks has: what each rank sends, so that messages have one
/// size.
int most_partial_sums(int shards, int ranks);

}  // namespace lockstep::inline internal

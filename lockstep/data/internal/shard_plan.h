#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::inline internal {

/// Logical shards `begin` to end - 1.
struct ShardBlock {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const ShardBlock&) const = default;
};

/// The shards that a rank computes: contiguous blocks in the order of ranks, of sizes that differ
/// by at most one. Empty on some ranks if there are fewer shards than ranks.
/// Requires 0 <= rank < ranks and shards >= 1.
ShardBlock shards_of_rank(int shards, int ranks, int rank);

/// A node of the tree over shards: the sum of the shards `first` to first + 2^level - 1, as far as
/// they exist. `first` is a multiple of 2^level.
struct ShardNode {
  int first = 0;
  int level = 0;
  bool operator==(const ShardNode&) const = default;
};

/// The order in which values of logical shards are summed, on any number of ranks: one aligned
/// binary tree, which depends only on the number of shards. A node of level k + 1 is its left child
/// of level k plus its right child; if no shard is under the right child, it is the left child.
///
/// Values are pushed in the order of shards, as leaves or as nodes that another rank has summed. A
/// stack holds the nodes whose sibling is missing, like the ones in a binary counter.
///
/// A block of n consecutive shards, such as those of a rank or of a machine's ranks, is summed to
/// at most b(n) nodes, since the nodes of a block have lengths 1, 2, 4, … up to the largest, and
/// back to 1. So b(n) is the largest m with
///
///   2 (2^(m/2) - 1) <= n for even m,  3 * 2^((m-1)/2) - 2 <= n for odd m,
///
/// that is 1, 2, 2, 3, 3, 4 for n = 1 … 6, and at most 2 log2(n + 2) - 2. A block that begins at
/// shard 0, as that of a single rank, has at most log2(n) + 1. During a push there is one more: the
/// pushed value.
///
/// Threads: one at a time.
class ShardTree {
 public:
  explicit ShardTree(int shards);

  /// Pushes a node. Returns how many times to replace the two newest values by their sum, left plus
  /// right.
  int push(const ShardNode& node);
  /// The nodes that are not yet summed, in the order of shards.
  const std::vector<ShardNode>& nodes() const { return nodes_; }
  /// Whether one node is left: the sum of all shards.
  bool is_complete() const;
  void clear() { nodes_.clear(); }

 private:
  int shards_;
  int depth_;
  std::vector<ShardNode> nodes_;
};

/// How nodes are summed as far as the tree allows. Values are numbered: first the inputs, then the
/// results of `sums` in their order.
struct SumPlan {
  struct Sum {
    int left = 0;
    int right = 0;
  };
  int inputs = 0;
  std::vector<Sum> sums = {};         ///< each value is used once at most, after it is there
  std::vector<int> results = {};      ///< the values that are left, in the order of shards
  std::vector<ShardNode> nodes = {};  ///< of `results`
};

/// `inputs`: in the order of shards.
SumPlan plan_sums(int shards, const std::vector<ShardNode>& inputs);

/// The nodes to which a block of shards is summed, in order.
std::vector<ShardNode> partial_sums(int shards, const ShardBlock& block);

/// How partial sums are exchanged between ranks that are on one or several machines. A machine sums
/// what its ranks have to nodes; if its ranks are consecutive, to at most b(n), where n is the
/// number of its shards. Only these are sent to other machines, and each machine sums all of them.
struct ShardExchangePlan {
  /// Of the partial sums of this machine's ranks, in the order of ranks.
  SumPlan within;
  /// Of all machines' results, in the order of shards.
  SumPlan between;
  /// An input of `between`: its number among the results of its machine.
  struct Result {
    int machine = 0;
    int number = 0;
  };
  std::vector<Result> order;
  /// The maximum number of results over the machines. Each machine sends this number, so that
  /// messages have equal sizes.
  int most_results = 0;
};

/// `ranks_of_machines`: the ranks of each machine, ascending; together all ranks.
ShardExchangePlan plan_shard_exchange(int shards,
                                      const std::vector<std::vector<int>>& ranks_of_machines,
                                      std::size_t machine);

}  // namespace lockstep::inline internal

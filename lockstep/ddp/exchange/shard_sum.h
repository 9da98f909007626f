#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/internal/shard_plan.h"

namespace lockstep::inline internal {

/// Sums values of logical shards over all ranks in the order of ShardTree, so the sum has the same
/// bits on any number of ranks and any backend. A value is a list of flat tensors.
///
///     ShardSum sum(group, shards, {{at::kFloat, 1000}});
///     for (each shard of this rank) { fill sum.next_value(); sum.push(shard); }
///     const std::vector<at::Tensor>& sums = sum.finish();      // collective
///
/// A rank sums its own shards while it computes them. finish() divides the elements among the
/// ranks: each sums one part of all ranks' partial sums, then all parts are gathered. If the group
/// shares memory, ranks read others' partial sums in place; else they send them, in chunks. Two
/// ranks with one partial sum each do an all-reduce in place.
/// Threads: one at a time.
/// Lifetime: keeps the group alive. The result of finish() is valid until the next finish().
/// Errors: from finish() as Work::wait; then clear() it.
class ShardSum {
 public:
  using Layout = std::vector<std::pair<at::ScalarType, std::int64_t>>;

  ShardSum(ProcessGroup group, int shards, const Layout& layout);

  /// Uses a flat tensor of the layout's size as tensor `index` of the next value, without a copy;
  /// it may be overwritten. Call it before next_value(), and only if may_adopt().
  void adopt(std::size_t index, at::Tensor flat);
  /// Whether peers can read the tensor in place, or need not.
  bool may_adopt(const at::Tensor& tensor) const;
  /// Tensors of at least the layout's sizes, uninitialized except adopted ones.
  const std::vector<at::Tensor>& next_value();
  /// Adds next_value() as the value of a shard. Call it for all shards of this rank's block, in
  /// order.
  void push(int shard);
  /// Discards what was pushed.
  void clear();
  /// The sums over all shards. Collective.
  const std::vector<at::Tensor>& finish();

 private:
  struct Value {
    std::vector<at::Tensor> tensors;
    std::vector<bool> is_adopted;
  };
  Value empty_value() const;
  at::Tensor allocate(std::size_t index);
  void recycle(const Value& value);
  at::Tensor without_padding(const Value& value, std::size_t index) const;
  bool is_all_reduce() const;
  void all_reduce();
  void exchange(std::size_t index);
  bool exchange_in_place(std::size_t index);
  std::vector<std::vector<std::uint64_t>> gather_places(std::size_t index) const;
  at::Tensor sum_of(const std::vector<at::Tensor>& rows) const;

  ProcessGroup group_;
  int shards_;
  ShardBlock own_;
  int most_sums_;                    // of any rank
  std::vector<ShardNode> of_ranks_;  // all ranks' partial sums, in their order
  Layout layout_;
  std::vector<std::int64_t> padded_;  // elements of each tensor, a multiple of the ranks' parts
  ShardTree tree_;
  std::vector<Value> sums_;  // of tree_'s nodes
  std::optional<Value> next_;
  std::vector<std::vector<at::Tensor>> spare_;  // by index, padded
  Value padded_results_;
  std::vector<at::Tensor> results_;  // of the layout's sizes
};

}  // namespace lockstep::inline internal
